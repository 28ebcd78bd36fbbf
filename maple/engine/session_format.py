"""What a saved session's file holds: its keys and values as safetensors, and what it is. No file is touched here.

By hand: the safetensors library copies all arrays into one text before it writes, and they may be most of the memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from maple.engine.errors import SessionTampered
from maple.engine.kv.cache import KvSnapshot
from maple.engine.stats import SessionManifest

_DTYPES = {"|u1": "U8", "<u2": "U16", "<i4": "I32"}
_TYPES = {word: np.dtype(code) for code, word in _DTYPES.items()}
"""What snapshots are made of, in safetensors' words."""


def owner_folder(owner: str) -> str:
    """Owners' names may hold anything; folders' names are their hashes."""
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def serialized(about: dict[str, Any], owner: str, snapshot: KvSnapshot) -> list[memoryview]:
    """A safetensors file in parts: its header, and the arrays where they are, since they may be most of the memory."""
    content = json.dumps({**about, "owner": owner_folder(owner)}, sort_keys=True).encode()
    tensors: dict[str, npt.NDArray[Any]] = {
        "about": np.frombuffer(content, np.uint8),
        "ids": np.array(snapshot.ids, np.int32),
        **{f"kv.{name}": np.ascontiguousarray(array) for name, array in snapshot.arrays.items()},
    }
    header: dict[str, object] = {}
    at = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _DTYPES[array.dtype.str],
            "shape": array.shape,
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    flat = [array.reshape(-1).view(np.uint8).data for array in tensors.values()]
    return [memoryview(len(text).to_bytes(8, "little") + text), *flat]


def sum_of(parts: Iterable[memoryview]) -> str:
    """The SHA-256 of a file of these parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def deserialized(data: bytes, manifest: SessionManifest, owner: str) -> KvSnapshot:
    """The snapshot in a file; everything that the manifest says must be in there, too."""
    try:
        tensors = _tensors(data)
        about = json.loads(tensors.pop("about").tobytes())
        ids = [int(token) for token in tensors.pop("ids")]
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SessionTampered(f"not a session's file: {type(error).__name__}") from error
    check_about(about, manifest, owner)
    if len(ids) != manifest.tokens or not ids:
        raise SessionTampered("manifest and file differ")
    arrays = {name.removeprefix("kv."): array for name, array in tensors.items()}
    return KvSnapshot(ids=ids, kv_format=manifest.kv_format, arrays=arrays)


def _tensors(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """Views of what ``serialized`` wrote. Raises what its kind says where it did not."""
    size = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        start, end = entry["data_offsets"]
        array = np.frombuffer(memoryview(data)[8 + size + start : 8 + size + end], _TYPES[entry["dtype"]])
        found[name] = array.reshape(entry["shape"])
    return found


def check_about(about: object, manifest: SessionManifest, owner: str) -> None:
    """Whether a file is what its manifest says. Raises SessionTampered."""
    fields = attrs.asdict(manifest)
    expected = {name: fields[name] for name in fields if name not in ("bytes", "sha256")}
    if about != {**expected, "owner": owner_folder(owner)}:
        raise SessionTampered("manifest and file differ")
