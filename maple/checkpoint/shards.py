"""The safetensors files of a checkpoint folder: what they declare, and their tensors as views of the mapped files.

By hand: the safetensors library has no bf16 in numpy, and does not tell where in a file a tensor lies.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from maple.checkpoint.errors import LoadError

Array = npt.NDArray[Any]

FLASHHEAD = "flashhead"
"""In the names of files and tensors of the approximate head that some exports carry; it is passed over."""
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_JSON_LIMIT = 64 << 20
_HEADER_LIMIT = 100 << 20  # the format's own
_NUMBERS: Mapping[str, npt.DTypeLike] = {
    "BF16": np.uint16,  # as its bits
    "F16": np.float16,
    "F32": np.float32,
    "U32": np.uint32,
    "U8": np.uint8,
}


@attrs.frozen
class TensorInfo:
    """What a header declares of one tensor; dtype in safetensors' spelling, such as BF16 or U32.

    ``begin`` is where in the file its data lies.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    begin: int = 0

    @property
    def nbytes(self) -> int:
        """Size of the data in the file, for the dtypes that a Maple is stored in."""
        return math.prod(self.shape) * np.dtype(_NUMBERS[self.dtype]).itemsize


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
    """The weight files of ``folder``: those its index names, else the single file.

    The approximate head that some exports carry beside the model (flashhead) is passed over. Raises
    ``LoadError`` for an index that is broken or names a file that is not there, and for a folder without
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
    names = sorted({name for name in weight_map.values() if FLASHHEAD not in name})
    for name in names:
        if pathlib.PurePath(name).name != name or "\\" in name:
            raise LoadError(f"{INDEX} names a file outside its folder: {name[:64]!r}")
    return names


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint; raises ``LoadError`` naming the file."""
    try:
        if path.stat().st_size > _JSON_LIMIT:
            raise LoadError(f"{path.name} is too large")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path.name} is not valid JSON") from error
    if not isinstance(content, dict):
        raise LoadError(f"{path.name} is not a JSON object")
    return content


def read_shard(path: pathlib.Path) -> Shard:
    """Read and check the header of a safetensors file; raises ``LoadError`` naming the file.

    The library checks it (sizes against shapes, that tensors neither overlap nor end past the file). It does
    not tell where they lie, so the header that was found good is read for that.
    """
    with _named_errors(path):
        header = _header_bytes(path)
        with safe_open(path, framework="np"):
            entries: dict[str, Any] = json.loads(header[8:])
    entries.pop("__metadata__", None)
    return Shard(
        path=path,
        size=path.stat().st_size,
        header_sha256=hashlib.sha256(header).hexdigest(),
        tensors={name: _info(name, entry, path.name, len(header)) for name, entry in entries.items()},
    )


@contextlib.contextmanager
def _named_errors(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise LoadError(f"{path.name} is truncated or not a safetensors file: {error}") from error
    except OSError as error:
        raise LoadError(f"{path.name} cannot be read: {error.strerror or type(error).__name__}") from error


def _header_bytes(path: pathlib.Path) -> bytes:
    with path.open("rb") as file:
        prefix = file.read(8)
        return prefix + file.read(min(int.from_bytes(prefix, "little"), _HEADER_LIMIT))


def _info(name: str, entry: Mapping[str, Any], shard: str, data: int) -> TensorInfo:
    return TensorInfo(name, entry["dtype"], tuple(entry["shape"]), shard, data + entry["data_offsets"][0])


class MappedShards:
    """Files, mapped when a tensor of theirs is first wanted; views keep their file's mapping alive.

    copy_on_write: views may be written to, which changes neither the file nor what others see of it; torch
    wraps no other memory without a warning.
    """

    def __init__(self, shards: Iterable[Shard], *, copy_on_write: bool = False) -> None:
        self._paths = {shard.name: shard.path for shard in shards}
        self._access = mmap.ACCESS_COPY if copy_on_write else mmap.ACCESS_READ
        self._areas: dict[str, mmap.mmap] = {}

    def view(self, info: TensorInfo) -> Array:
        """The tensor as numpy numbers in its shape, bf16 as its bits in uint16; nothing is read yet.

        It may be unaligned. Raises ``LoadError`` naming it.
        """
        area, dtype = self._area(info.shard), np.dtype(_NUMBERS[info.dtype])
        if info.begin + info.nbytes > len(area):
            raise LoadError(f"{info.name} in {info.shard} cannot be read: the file has become shorter")
        return np.frombuffer(area, dtype, math.prod(info.shape), info.begin).reshape(info.shape)

    def release(self) -> None:
        """Give the pages read so far back to the system; they come again from the files when needed.

        Without this a 40 GB checkpoint that passes through would count as this process's memory.
        """
        for area in self._areas.values():
            area.madvise(mmap.MADV_DONTNEED)

    def _area(self, name: str) -> mmap.mmap:
        if name not in self._areas:
            path = self._paths[name]
            with _named_errors(path), path.open("rb") as file:
                self._areas[name] = mmap.mmap(file.fileno(), 0, access=self._access)
        return self._areas[name]
