"""The safetensors files of a checkpoint folder: what they declare, and their tensors one at a time."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import attrs
from safetensors import SafetensorError, safe_open

from maple.checkpoint.errors import LoadError

if TYPE_CHECKING:
    import torch

__all__ = ["Shard", "ShardReader", "TensorInfo", "find_shards", "read_json", "read_shard"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_JSON_LIMIT = 64 << 20
_HEADER_LIMIT = 100 << 20  # the format's own
_REOPEN_AFTER = 1 << 30


@attrs.frozen
class TensorInfo:
    """What a header declares of one tensor; dtype in safetensors' spelling, such as BF16 or U32."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str

    @property
    def nbytes(self) -> int:
        """Size of the data in the file."""
        count = 1
        for size in self.shape:
            count *= size
        return count * _ITEM_BYTES.get(self.dtype, 0)


_ITEM_BYTES = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F64": 8,
    "U32": 4,
    "I32": 4,
    "U8": 1,
    "I8": 1,
    "I64": 8,
    "U64": 8,
    "BOOL": 1,
}


@attrs.frozen(kw_only=True)
class Shard:
    """One file: what identifies its content without reading it all, and what it declares."""

    path: pathlib.Path
    size: int
    header_sha256: str
    tensors: Mapping[str, TensorInfo]

    @property
    def name(self) -> str:
        """File name, unique in a checkpoint."""
        return self.path.name


def find_shards(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """The weight files of `folder`: those its index names, else the single file.

    The approximate head that some exports carry beside the model (flashhead) is passed over. Raises
    `LoadError` for an index that is broken or names a file that is not there, and for a folder without
    weights.
    """
    index = folder / INDEX
    if index.is_file():
        names = _indexed(index)
    elif (folder / SINGLE).is_file():
        names = [SINGLE]
    else:
        raise LoadError(f"{folder.name} holds neither {SINGLE} nor {INDEX}")
    for name in names:
        if not (folder / name).is_file():
            raise LoadError(f"{INDEX} names {name}, which is not in {folder.name}")
    return tuple(folder / name for name in names)


def _indexed(index: pathlib.Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise LoadError(f"{INDEX} has no weight_map of tensor names to file names")
    names = sorted({name for name in weight_map.values() if "flashhead" not in name})
    for name in names:
        if pathlib.PurePath(name).name != name or "\\" in name:
            raise LoadError(f"{INDEX} names a file outside its folder: {name[:64]!r}")
    return names


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint; raises `LoadError` naming the file."""
    try:
        if path.stat().st_size > _JSON_LIMIT:
            raise LoadError(f"{path.name} is too large")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise LoadError(f"{path.name} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise LoadError(f"{path.name} is not valid JSON") from e
    if not isinstance(content, dict):
        raise LoadError(f"{path.name} is not a JSON object")
    return content


def read_shard(path: pathlib.Path) -> Shard:
    """Read and check the header of a safetensors file; raises `LoadError` naming the file."""
    try:
        header = _header_bytes(path)
        with safe_open(path, framework="np") as file:
            names = list(file.keys())
            tensors = {name: _info(file.get_slice(name), name, path.name) for name in names}
        return Shard(
            path=path,
            size=path.stat().st_size,
            header_sha256=hashlib.sha256(header).hexdigest(),
            tensors=tensors,
        )
    except SafetensorError as e:
        raise LoadError(f"{path.name} is truncated or not a safetensors file: {e}") from e
    except OSError as e:
        raise LoadError(f"{path.name} cannot be read: {e.strerror or e}") from e


def _header_bytes(path: pathlib.Path) -> bytes:
    with path.open("rb") as file:
        prefix = file.read(8)
        return prefix + file.read(min(int.from_bytes(prefix, "little"), _HEADER_LIMIT))


def _info(slice_: Any, name: str, shard: str) -> TensorInfo:
    return TensorInfo(name, slice_.get_dtype(), tuple(slice_.get_shape()), shard)


class ShardReader:
    """Reads tensors as memory-mapped views, one open file at a time.

    A file is opened anew now and then: pages already read stop counting as this process's memory once their
    tensors are dropped, so that a 40 GB checkpoint passes through without being held. A view keeps its own
    mapping alive.
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = {shard.name: shard for shard in shards}
        self._name: str | None = None
        self._file: Any = None
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, info: TensorInfo) -> torch.Tensor:
        """The tensor as a view of the mapped file; raises `LoadError` naming it."""
        try:
            tensor: torch.Tensor = self._open(info.shard).get_tensor(info.name)
        except (SafetensorError, OSError, RuntimeError) as e:
            raise LoadError(f"{info.name} in {info.shard} cannot be read: {e}") from e
        self._read += tensor.nbytes
        return tensor

    def _open(self, name: str) -> Any:
        if name != self._name or self._read > _REOPEN_AFTER:
            self._close()
            self._file = safe_open(self._shards[name].path, framework="pt").__enter__()
            self._name = name
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.__exit__(None, None, None)
        self._file, self._name, self._read = None, None, 0
