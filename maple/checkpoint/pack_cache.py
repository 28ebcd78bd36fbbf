"""Folders of packed weights that are seen whole or not at all, and the key that names a checkpoint's.

An entry is written in a folder of another name, synced, and renamed. A writer that dies leaves a folder whose
lock is free, which the next writer removes. Bits that rot in place are not detected.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import attrs

from maple.checkpoint.errors import LoadError
from maple.checkpoint.filelock import hold, is_free
from maple.checkpoint.shards import Shard, read_json

__all__ = ["MANIFEST", "EntryStore", "checkpoint_key", "sync"]

MANIFEST = "manifest.json"
LOCK = "lock"
_TEMPORARY = ".writing-"


def checkpoint_key(shards: Sequence[Shard], *form: object) -> str:
    """Name of a checkpoint's entry in some form.

    Over its files' names, sizes, header hashes, and times or hub hashes.
    """
    files = [[shard.name, shard.size, shard.header_sha256, _identity(shard.path)] for shard in shards]
    return hashlib.sha256(json.dumps([*form, files]).encode()).hexdigest()[:40]


def _identity(path: pathlib.Path) -> str:
    """The hub keeps a file under the hash of its content, and times there say only when it was fetched."""
    target = path.resolve()
    if path.is_symlink() and target.parent.name == "blobs":
        return target.name
    return str(target.stat().st_mtime_ns)


def sync(path: pathlib.Path) -> None:
    """Wait until a file's or folder's content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@attrs.frozen
class EntryStore:
    """The entries below one folder, which is made when the first is written."""

    root: pathlib.Path
    manifest: str = MANIFEST

    @contextlib.contextmanager
    def workspace(self) -> Iterator[pathlib.Path]:
        """A locked folder of our own to write in; removed at the end unless it was published."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with hold(self.root / LOCK):
            self._remove_abandoned()
            workspace = pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
            lock = hold(workspace / LOCK)
        with lock:
            try:
                yield workspace
            finally:
                shutil.rmtree(workspace, ignore_errors=True)

    def publish(self, workspace: pathlib.Path, key: str) -> None:
        """Make a finished workspace the entry of that key, whatever was there."""
        entry = self.root / key
        with hold(self.root / LOCK):
            if entry.exists():
                # Another process was faster, or the entry was found unusable; ours is whole.
                discarded = pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
                entry.rename(discarded / "entry")
                shutil.rmtree(discarded, ignore_errors=True)
            workspace.rename(entry)
            sync(self.root)

    def drop_outdated(self, key: str, folder: pathlib.Path, version: int) -> None:
        """Remove entries of an earlier state of the same checkpoint folder: nothing finds them any more."""
        for manifest in self.root.glob(f"*/{self.manifest}"):
            # A workspace, too, may hold a manifest by now; it is the business of whoever writes in it.
            if manifest.parent.name == key or manifest.parent.name.startswith(_TEMPORARY):
                continue
            with contextlib.suppress(LoadError):
                content = read_json(manifest)
                if content.get("format") == version and content.get("folder") == str(folder.resolve()):
                    shutil.rmtree(manifest.parent, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        for folder in self.root.glob(f"{_TEMPORARY}*"):
            if is_free(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)
