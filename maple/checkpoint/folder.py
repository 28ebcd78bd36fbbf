"""A checkpoint folder, opened: its config, its files, and where each tensor of the model lies in them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from maple.checkpoint.describe import check_config, read_fields
from maple.checkpoint.errors import LoadError
from maple.checkpoint.fields import PlainConfig
from maple.checkpoint.shards import Shard, TensorInfo, find_shards, read_shard
from maple.checkpoint.spelling import Plan, resolve

PACK_MANIFEST = "maple-pack.json"
"""What marks a folder in the kernels' own layout."""


@attrs.frozen(kw_only=True)
class Checkpoint:
    """What the headers of a Maple folder say; no weight has been read yet.

    fields: those of config.json that say what the model is; ``config`` is their checked form.
    """

    folder: pathlib.Path
    fields: Mapping[str, Any]
    config: PlainConfig
    shards: tuple[Shard, ...]
    plan: Plan

    @classmethod
    def open(cls, folder: pathlib.Path) -> Checkpoint:
        """Check config, files, names, shapes and dtypes; raises ``LoadError`` naming the first at fault."""
        if (folder / PACK_MANIFEST).is_file():
            raise LoadError(f"{folder.name} is packed for the native kernels, which torch does not read")
        fields = read_fields(folder)
        config = check_config(folder, fields)
        shards = tuple(read_shard(path) for path in find_shards(folder))
        tensors: dict[str, TensorInfo] = {}
        for shard in shards:
            for name, info in shard.tensors.items():
                if name in tensors:
                    raise LoadError(f"tensor {name} is in both {tensors[name].shard} and {shard.name}")
                tensors[name] = info
        plan = resolve(config, tensors)
        return cls(folder=folder, fields=fields, config=config, shards=shards, plan=plan)

    def parts(self) -> Iterator[TensorInfo]:
        """Every tensor of the checkpoint that the model needs; one that is fused comes several times."""
        for slot in self.plan.sources:
            yield from self.plan.parts(slot)
