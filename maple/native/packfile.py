"""A pack on the disk: one safetensors file in the kernels' layout, and a manifest beside it."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping

import attrs
import numpy as np
import structlog

from maple.checkpoint.errors import LoadError
from maple.checkpoint.fields import PlainConfig
from maple.checkpoint.folder import PACK_MANIFEST, Checkpoint
from maple.checkpoint.pack_cache import checkpoint_key, sync
from maple.checkpoint.shards import SINGLE, Array, MappedShards, Shard, read_json, read_shard
from maple.native.fingerprint import FORMAT, fingerprint
from maple.native.forms import Forms
from maple.native.layout import Layout
from maple.native.model import ModelWeights
from maple.native.pages import forget, in_huge_pages

log = structlog.get_logger(__name__)

_PAGE = 4096


def is_pack(folder: pathlib.Path) -> bool:
    """Whether a folder says that it is a pack."""
    return (folder / PACK_MANIFEST).is_file()


def pack_key(checkpoint: Checkpoint, layout: Layout) -> str:
    """Names the pack of a checkpoint, in that layout, for these kernels."""
    return checkpoint_key(checkpoint.shards, "native", FORMAT, fingerprint(), layout.forms.names())


def write_pack(
    folder: pathlib.Path, layout: Layout, parts: Iterable[tuple[str, Array]], source: Mapping[str, str]
) -> None:
    """Write the file and the manifest of a pack into ``folder`` and wait until they are on the disk.

    ``parts`` come in the layout's order and are written as they come; ``source`` says in the manifest what the
    pack was made from. Raises OSError.
    """
    path, digest = folder / SINGLE, hashlib.sha256()
    with path.open("wb") as file:
        header = _header(layout)
        digest.update(header)
        file.write(header)
        for (name, array), part in zip(parts, layout.parts.values(), strict=True):
            if name != part.name or array.nbytes != part.nbytes:
                raise ValueError(f"part {name} of {array.nbytes} bytes is not {part.name} of {part.nbytes}")
            data = np.ascontiguousarray(array).data
            digest.update(data)
            file.write(data)
    sync(path)
    forget(path)
    shard = read_shard(path)
    manifest = {
        "format": FORMAT,
        "layout": fingerprint(),
        "forms": layout.forms.names(),
        "files": {SINGLE: {"size": shard.size, "header_sha256": shard.header_sha256}},
        "sha256": digest.hexdigest(),
        **source,
    }
    (folder / PACK_MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    sync(folder / PACK_MANIFEST)
    sync(folder)


def is_rotted(folder: pathlib.Path) -> bool:
    """Whether the file's bytes are no longer those that were packed; reads them all. Raises OSError.

    A pack from before their sum was noted counts as sound.
    """
    try:
        packed = read_json(folder / PACK_MANIFEST).get("sha256")
    except LoadError:
        return True
    with (folder / SINGLE).open("rb") as file:
        return packed not in (None, hashlib.file_digest(file, "sha256").hexdigest())


def put_away(folder: pathlib.Path) -> bool:
    """Make the next load find no pack here; True, since it makes one anew then."""
    log.error("pack.rotted", pack=folder.name, advice="it is made anew; look after the disk")
    (folder / PACK_MANIFEST).unlink(missing_ok=True)
    return True


def _header(layout: Layout) -> bytes:
    """A safetensors header, padded so that the tensors begin on a page."""
    entries: dict[str, object] = {"__metadata__": {"format": "maple-pack"}}
    at = 0
    for part in layout.parts.values():
        entries[part.name] = {
            "dtype": part.dtype,
            "shape": part.shape,
            "data_offsets": [at, at + part.nbytes],
        }
        at += part.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-(len(text) + 8) % _PAGE)
    return len(text).to_bytes(8, "little") + text


@attrs.frozen(kw_only=True, eq=False)
class Pack:
    """A pack, mapped: its layout and the bytes of its parts."""

    folder: pathlib.Path
    layout: Layout
    arrays: Mapping[str, Array]

    @classmethod
    def open(cls, folder: pathlib.Path, config: PlainConfig) -> Pack:
        """Map the pack in ``folder`` of a model with that config; reads no weights.

        Raises ``LoadError`` for one of another format or layout, and for a file that is not the one written.
        """
        manifest = read_json(folder / PACK_MANIFEST)
        if manifest.get("format") != FORMAT or manifest.get("layout") != fingerprint():
            raise LoadError(
                f"{folder.name} was packed for other kernels than these: pack its checkpoint again"
            )
        layout = Layout(config, Forms.from_names(manifest.get("forms")))
        shard = _checked(folder, layout, manifest.get("files"))
        mapped = MappedShards([shard])
        arrays = {name: mapped.view(shard.tensors[name]) for name in layout.parts}
        in_huge_pages(arrays["head"])
        return cls(folder=folder, layout=layout, arrays=arrays)

    def bind(self) -> ModelWeights:
        """The kernels' weights; they keep the mapping alive."""
        return self.layout.bind(self.arrays)


def _checked(folder: pathlib.Path, layout: Layout, files: object) -> Shard:
    if not (folder / SINGLE).is_file():
        raise LoadError(f"{folder.name} holds no {SINGLE}")
    shard = read_shard(folder / SINGLE)
    if files != {SINGLE: {"size": shard.size, "header_sha256": shard.header_sha256}}:
        raise LoadError(f"{SINGLE} of {folder.name} is not the file that was packed")
    for name, part in layout.parts.items():
        found = shard.tensors.get(name)
        if found is None:
            raise LoadError(f"tensor {name} is missing")
        if (found.dtype, found.shape) != (part.dtype, part.shape):
            raise LoadError(
                f"tensor {name} has shape {list(found.shape)} where {list(part.shape)} was expected"
            )
    if surplus := shard.tensors.keys() - layout.parts.keys():
        raise LoadError(f"tensor {min(surplus)} is not part of a Maple of this shape")
    return shard
