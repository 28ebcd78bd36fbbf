"""A checkpoint folder, opened: its config, its files, and where each tensor of the model lies in them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import attrs

from maple.model.configuration import MapleConfig
from maple.model.describe import read_config
from maple.model.errors import LoadError
from maple.model.shards import Shard, TensorInfo, find_shards, read_shard
from maple.model.spelling import Plan, resolve

__all__ = ["Checkpoint"]


@attrs.frozen(kw_only=True)
class Checkpoint:
    """What the headers of a Maple folder say; no weight has been read yet."""

    folder: pathlib.Path
    config: MapleConfig
    shards: tuple[Shard, ...]
    plan: Plan

    @classmethod
    def open(cls, folder: pathlib.Path) -> Checkpoint:
        """Check config, files, names, shapes and dtypes; raises `LoadError` naming the first at fault."""
        config = read_config(folder)
        shards = tuple(read_shard(path) for path in find_shards(folder))
        tensors: dict[str, TensorInfo] = {}
        for shard in shards:
            for name, info in shard.tensors.items():
                if name in tensors:
                    raise LoadError(f"tensor {name} is in both {tensors[name].shard} and {shard.name}")
                tensors[name] = info
        return cls(folder=folder, config=config, shards=shards, plan=resolve(config, tensors))

    def parts(self) -> Iterator[TensorInfo]:
        """Every tensor of the checkpoint that the model needs; one that is fused comes several times."""
        for slot in self.plan.sources:
            yield from self.plan.parts(slot)
