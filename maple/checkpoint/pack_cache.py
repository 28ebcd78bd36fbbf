"""Folders of packed weights that are seen whole or not at all, and the key that names a checkpoint's.

An entry is written in a folder of another name, synced, and renamed. The system frees the lock of a writer
that dies, and the next one removes what it left. Bits that rot in place are looked for once
something failed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import attrs
import filelock
import structlog

from maple.checkpoint.errors import LoadError
from maple.checkpoint.shards import Shard, read_json

LOCK = "lock"
_TEMPORARY = ".writing-"

T = TypeVar("T")

log = structlog.get_logger("maple.pack_cache")


def file_lock(path: pathlib.Path) -> filelock.BaseFileLock:
    """A lock on a file, made if need be, which the system frees when its holder dies.

    Another kind, which some file systems would need, would outlive it: there it is an OSError.
    """
    return filelock.FileLock(path, fallback_to_soft=False)


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


@attrs.frozen(kw_only=True)
class PackCache:
    """The packs below one folder, each an entry: a folder with a manifest, named by its key.

    manifest: the file that an entry cannot be without; version: its ``format``. What goes wrong here is logged
    and stops no load.
    """

    root: pathlib.Path
    manifest: str
    version: int

    def find(self, key: str, read: Callable[[pathlib.Path], T]) -> T | None:
        """What ``read`` makes of the entry; None where there is none, or where it raises ``LoadError``."""
        entry = self.root / key
        if not entry.is_dir():
            return None
        try:
            return read(entry)
        except LoadError as error:
            log.warning("pack.unusable", entry=key, reason=str(error))
            return None

    def store(self, key: str, source: pathlib.Path, size: int, write: Callable[[pathlib.Path], None]) -> bool:
        """Let ``write`` fill an entry of ``size`` bytes for the checkpoint in ``source``; whether one is there now.

        Its OSError is logged, anything else it raises goes on; either way nothing is left behind.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            free = shutil.disk_usage(self.root).free
            if free < size + size // 16:
                log.warning("pack.no_room", bytes=size, free=free)
                return False
            with self._workspace() as workspace:
                write(workspace)
                self._publish(workspace, key)
            self._drop_outdated(key, source)
        except OSError as error:
            log.warning("pack.not_stored", entry=key, reason=error.strerror or str(error))
            return False
        log.info("pack.stored", entry=key, bytes=size)
        return True

    @contextlib.contextmanager
    def _workspace(self) -> Iterator[pathlib.Path]:
        """A locked folder of our own to write in; removed at the end unless it was published."""
        with file_lock(self.root / LOCK):
            self._remove_abandoned()
            workspace = pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
            lock = file_lock(workspace / LOCK)
            lock.acquire()
        try:
            yield workspace
        finally:
            shutil.rmtree(workspace, ignore_errors=True)
            lock.release()

    def _publish(self, workspace: pathlib.Path, key: str) -> None:
        """Make a finished workspace the entry of that key, whatever was there."""
        entry = self.root / key
        with file_lock(self.root / LOCK):
            if entry.exists():
                # Another process was faster, or the entry was found unusable; ours is whole.
                discarded = pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.root))
                entry.rename(discarded / "entry")
                shutil.rmtree(discarded, ignore_errors=True)
            workspace.rename(entry)
            sync(self.root)

    def _drop_outdated(self, key: str, source: pathlib.Path) -> None:
        """Remove entries of an earlier state or format of the same checkpoint: nothing finds them any more."""
        for manifest in self.root.glob(f"*/{self.manifest}"):
            # A workspace, too, may hold a manifest by now; it is the business of whoever writes in it.
            if manifest.parent.name == key or manifest.parent.name.startswith(_TEMPORARY):
                continue
            with contextlib.suppress(LoadError):
                content = read_json(manifest)
                version = content.get("format")
                old = isinstance(version, int) and version <= self.version
                if old and content.get("folder") == str(source.resolve()):
                    shutil.rmtree(manifest.parent, ignore_errors=True)

    def _remove_abandoned(self) -> None:
        for folder in self.root.glob(f"{_TEMPORARY}*"):
            free = file_lock(folder / LOCK)
            with contextlib.suppress(filelock.Timeout, OSError), free.acquire(blocking=False):
                shutil.rmtree(folder, ignore_errors=True)
