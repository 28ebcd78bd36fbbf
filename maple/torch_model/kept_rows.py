"""Rows packed from a float checkpoint, kept in the pack cache for the next start.

One folder an entry, named by a key over everything that identifies the source's files:

    packs/<key>/manifest.json            format, layout, the entry's own files
    packs/<key>/packed-00.safetensors    <tensor>.codes and <tensor>.alpha

Only what took work is stored. A two-bit checkpoint is mapped as it lies, so its entry holds no tensors and
only says that its files were scanned; norms, router and tables always come from the source.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from maple.checkpoint.errors import LoadError
from maple.checkpoint.pack_cache import PackCache, checkpoint_key, sync
from maple.checkpoint.shards import MappedShards, Shard, read_json, read_shard
from maple.torch_model.mapped import tensor_of
from maple.torch_model.ternary import LAYOUT, TernaryTensor

FORMAT = 1
_MANIFEST = "manifest.json"
_FILE_BYTES = 1 << 30  # a file of an entry is closed when it has grown to this


def rows_key(shards: Sequence[Shard]) -> str:
    """Name of a checkpoint's entry: over everything that identifies its files."""
    return checkpoint_key(shards, FORMAT, LAYOUT)


class KeptRows:
    """The entries below one cache folder. What goes wrong here is logged and stops no load."""

    def __init__(self, cache_dir: pathlib.Path) -> None:
        self._cache = PackCache(root=cache_dir / "packs", manifest=_MANIFEST, version=FORMAT)

    def find(self, key: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TernaryTensor] | None:
        """The tensors of an entry, mapped, or None if there is no entry or it is not whole.

        ``shapes`` are the dense shapes of the model's ternary tensors; an entry may hold any of them.
        """
        return self._cache.find(key, lambda entry: _read_entry(entry, shapes))

    def store(self, key: str, tensors: Mapping[str, TernaryTensor], folder: pathlib.Path) -> bool:
        """Write an entry for the checkpoint in ``folder``; says whether one is there now."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        return self._cache.store(key, folder, size, lambda entry: _write_entry(entry, tensors, folder))


def _write_entry(workspace: pathlib.Path, tensors: Mapping[str, TernaryTensor], folder: pathlib.Path) -> None:
    files: dict[str, dict[str, Any]] = {}
    for i, group in enumerate(_groups(tensors)):
        path = workspace / f"packed-{i:02}.safetensors"
        _save(group, path)
        sync(path)
        shard = read_shard(path)
        files[path.name] = {"size": shard.size, "header_sha256": shard.header_sha256}
    manifest = {"format": FORMAT, "layout": LAYOUT, "folder": str(folder.resolve()), "files": files}
    (workspace / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    sync(workspace / _MANIFEST)
    sync(workspace)


def _save(group: dict[str, Any], path: pathlib.Path) -> None:
    try:
        save_file(group, path)
    except SafetensorError as error:  # its own word for errors of the disk
        raise OSError(str(error)) from error


def _groups(tensors: Mapping[str, TernaryTensor]) -> Iterator[dict[str, Any]]:
    group: dict[str, Any] = {}
    size = 0
    for name, tensor in tensors.items():
        group[f"{name}.codes"] = tensor.codes.contiguous()
        group[f"{name}.alpha"] = tensor.alpha.contiguous()
        size += tensor.nbytes
        if size >= _FILE_BYTES:
            yield group
            group, size = {}, 0
    if group:
        yield group


def _read_entry(entry: pathlib.Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TernaryTensor]:
    manifest = read_json(entry / _MANIFEST)
    files = manifest.get("files")
    if manifest.get("format") != FORMAT or manifest.get("layout") != LAYOUT or not isinstance(files, dict):
        raise LoadError(f"{_MANIFEST} is of another format")
    tensors: dict[str, TernaryTensor] = {}
    for name, expected in files.items():
        shard = read_shard(entry / pathlib.PurePath(name).name)
        if {"size": shard.size, "header_sha256": shard.header_sha256} != expected:
            raise LoadError(f"{name} is not the file that was written")
        tensors.update(_read_file(shard))
    for name, tensor in tensors.items():
        if shapes.get(name) != tensor.shape:
            raise LoadError(f"{name} has another shape")
    return tensors


def _read_file(shard: Shard) -> Iterator[tuple[str, TernaryTensor]]:
    mapped = MappedShards([shard], copy_on_write=True)
    for name in {name.rpartition(".")[0] for name in shard.tensors}:
        codes, alpha = shard.tensors.get(f"{name}.codes"), shard.tensors.get(f"{name}.alpha")
        if codes is None or alpha is None or codes.shape[:-1] != alpha.shape:
            raise LoadError(f"{name} lacks a part")
        if (codes.dtype, alpha.dtype) != ("U8", "BF16"):
            raise LoadError(f"{name} has another dtype")
        yield name, TernaryTensor(tensor_of(mapped, codes), tensor_of(mapped, alpha))
