"""``maple pack``: a checkpoint of any spelling becomes a folder that is mapped instead of packed."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Callable, Iterator

import attrs

from maple.checkpoint.errors import LoadError
from maple.checkpoint.folder import PACK_MANIFEST, Checkpoint
from maple.checkpoint.locate import locate
from maple.checkpoint.pack_cache import file_lock, sync
from maple.checkpoint.progress import LoadProgress, LoadTracker
from maple.checkpoint.shards import read_json
from maple.native.packfile import is_pack, pack_key, write_pack
from maple.native.parts import packed_parts
from maple.native.weights import kernel_layout

_COPIED = ("config.json", "generation_config.json", "tokenizer*.json", "*.jinja")


@attrs.frozen(kw_only=True)
class PackReport:
    """What became of it: ``written`` is false where the same pack was there already."""

    folder: pathlib.Path
    bytes: int
    written: bool


def pack(
    source: str,
    destination: pathlib.Path,
    *,
    revision: str = "main",
    head_dtype: str = "auto",
    threads: int = 1,
    replace: bool = False,
    progress: Callable[[LoadProgress], None],
    cancelled: Callable[[], bool],
) -> PackReport:
    """Pack ``source``, a folder or hub id, into the folder ``destination``.

    The folder appears whole or not at all: it is written beside its place, synced and renamed, and what a
    killed run left is removed by the next. A pack of the same files is left as it is; ``replace`` allows
    another pack to be there. Memory holds one layer's largest tensor. Raises ``LoadError`` and OSError.
    """
    folder = locate(source, revision, cancelled)
    if is_pack(folder):
        raise LoadError(f"{folder.name} is a pack already")
    checkpoint = Checkpoint.open(folder)
    layout = kernel_layout(checkpoint, head_dtype)
    key = pack_key(checkpoint, layout)
    destination = destination.absolute()
    destination.parent.mkdir(parents=True, exist_ok=True)
    with _workspace(destination) as workspace:
        if _holds(destination, key):
            return PackReport(folder=destination, bytes=layout.nbytes, written=False)
        _require_place(destination, layout.nbytes, replace=replace)
        tracker = LoadTracker(checkpoint.parts(), progress, cancelled)
        _copy_texts(folder, workspace)
        parts = packed_parts(checkpoint, layout, tracker, threads=threads)
        write_pack(workspace, layout, parts, {"source": folder.name, "key": key})
        _publish(workspace, destination)
    return PackReport(folder=destination, bytes=layout.nbytes, written=True)


@contextlib.contextmanager
def _workspace(destination: pathlib.Path) -> Iterator[pathlib.Path]:
    """An empty folder beside the destination; whoever packs to the same place meanwhile waits."""
    lock, workspace = (destination.with_name(f".{destination.name}.{word}") for word in ("lock", "packing"))
    with file_lock(lock):
        shutil.rmtree(workspace, ignore_errors=True)
        workspace.mkdir()
        try:
            yield workspace
        finally:
            shutil.rmtree(workspace, ignore_errors=True)
            lock.unlink(missing_ok=True)  # whoever waits for it sees that and makes another


def _holds(destination: pathlib.Path, key: str) -> bool:
    return is_pack(destination) and read_json(destination / PACK_MANIFEST).get("key") == key


def _require_place(destination: pathlib.Path, size: int, *, replace: bool) -> None:
    if destination.exists() and not destination.is_dir():
        raise LoadError(f"{destination.name} is a file, where a folder is to be written")
    if destination.is_dir() and any(destination.iterdir()):
        if not is_pack(destination):
            raise LoadError(f"{destination.name} holds other files: name a new folder")
        if not replace:
            raise LoadError(f"{destination.name} is a pack of something else: --force replaces it")
    free = shutil.disk_usage(destination.parent).free
    if size > free:
        raise LoadError(f"the pack needs {size / 1e9:.1f} GB of disk, and {free / 1e9:.1f} GB are free")


def _copy_texts(folder: pathlib.Path, workspace: pathlib.Path) -> None:
    for pattern in _COPIED:
        for path in sorted(folder.glob(pattern)):
            if path.is_file():
                shutil.copyfile(path, workspace / path.name)
                sync(workspace / path.name)


def _publish(workspace: pathlib.Path, destination: pathlib.Path) -> None:
    if destination.is_dir() and any(destination.iterdir()):
        replaced = workspace.with_suffix(".replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        destination.rename(replaced)
        workspace.rename(destination)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        workspace.rename(destination)
    sync(destination.parent)
