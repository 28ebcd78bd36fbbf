"""Blocks of keys and values as files: ``SPACE/OWNER/full|sliding/HASH``, whole and unchanged or not there at all.

A space is one model and one KV format, so that servers of several share a folder. A file names what it is and ends in
a MAC under the folder's secret: whatever differs is removed and was never there. Functions here block.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from maple.engine.errors import SessionTampered, SessionUnknown
from maple.engine.prefix_disk.least_used import GRACE, Entry, to_remove
from maple.engine.prefix_disk.names import Names, Owners
from maple.engine.prefix_disk.notes import noted, only_noted_in, write_note
from maple.engine.private_files import kept_secret, opened_file, opened_folder, remove_file, write_file

SECRET = "secret"  # noqa: S105 -- a file's name
SESSIONS = "sessions"
MOST_BYTES = 20 * 10**9
_MAC = 32
_STALE = 3600.0
"""Seconds after which a file that was never finished is nobody's."""

File = tuple[str, bool]
"""A block's name, and whether it is the sliding layers' part."""


class PrefixStore:
    """The blocks under one folder, at most ``max_bytes`` of all spaces; None: a tenth of what is free, or 20 GB.

    ``open`` comes first. One thread writes; others may read, and other processes do as they like.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        max_bytes: int | None = None,
        owners: Owners | None = None,
        shared: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.nbytes = 0
        self.written = 0
        self.read_blocks = 0
        self.damaged = 0
        self._opened_once = threading.Event()
        self.names = Names(secret=b"")
        self._folder = folder
        self._max_bytes = max_bytes
        self._owners = owners
        self._shared = shared
        self._clock = clock
        self._space = ""
        self._limit = 0
        self._unseen = 0
        self._known: set[File] = set()

    def open(self, model: str, kv_format: str) -> None:
        """Find what is there of this model in this format, and put away what nobody can want. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = kept_secret(self._folder, SECRET)
        self.names = Names(secret=secret, owners=self._owners, shared=self._shared)
        self._space = hashlib.sha256(f"{model}\n{kv_format}".encode()).hexdigest()[:24]
        self.keep_owners()
        entries = list(self._entries())
        self.nbytes = sum(one.size for one in entries)
        self._known = {found for one in entries if (found := self._file(one.path)) is not None}
        tenth = (shutil.disk_usage(self._folder).free + self.nbytes) // 10
        self._limit = min(tenth, MOST_BYTES) if self._max_bytes is None else self._max_bytes
        self.trim()
        self._opened_once.set()

    @property
    def ready(self) -> bool:
        """Whether it is open."""
        return self._opened_once.is_set()

    def wait_until_ready(self, seconds: float) -> None:
        """Return once it is open. Raises TimeoutError."""
        if not self._opened_once.wait(seconds):
            raise TimeoutError("it could not be opened in time")

    def known(self, file: File) -> bool:
        """Whether it was there when somebody looked; no disk is asked."""
        return file in self._known

    def has(self, file: File) -> bool:
        """Whether it is there."""
        if file in self._known:
            return True
        with contextlib.suppress(SessionUnknown, FileNotFoundError), self._opened(file) as (folder, name):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            self._known.add(file)
            return True
        return False

    def write(self, file: File, data: bytes | memoryview) -> None:
        """Put a block in place, if its owner may still enter. Raises OSError."""
        tags = self.names.tags()
        if tags is not None and not self._shared and file[0].partition("/")[0] not in tags:
            return
        head = self._head(file, len(data))
        with self._opened(file, create=True) as (folder, name):
            write_file(folder, name, head, data, self._mac(head, data), sync=False)
        self._known.add(file)
        self.written += 1
        size = len(head) + len(data) + _MAC
        self.nbytes += size
        self._unseen += size
        if self.nbytes > self._limit or self._unseen > self._limit // 10:  # others write here too
            self.trim()

    def read(self, file: File, size: int) -> memoryview | None:
        """A block of ``size`` bytes; None where it is not there, or not what was written. Raises OSError."""
        head = self._head(file, size)
        try:
            with self._opened(file) as (folder, name), opened_file(folder, name) as stream:
                data = memoryview(stream.read(len(head) + size + _MAC + 1))
        except (FileNotFoundError, SessionUnknown):
            self._known.discard(file)
            return None
        except SessionTampered:
            data = memoryview(b"")
        content, mac = data[len(head) : -_MAC], data[-_MAC:]
        if (
            data[: len(head)] != head
            or len(content) != size
            or not hmac.compare_digest(mac, self._mac(head, content))
        ):
            self.damaged += 1
            self.remove([file])
            return None
        self.read_blocks += 1
        return content

    def touch(self, blocks: Iterable[tuple[str, bool]]) -> None:
        """Blocks of one path, from its start, were of use; the second says of each whether it is to last."""
        now = self._clock()
        for depth, (block, lasting) in enumerate(blocks):
            used = now + (GRACE if lasting else 0.0) - depth / 1000  # of a path the end goes first
            for file in ((block, False), (block, True)):
                if file in self._known:
                    with contextlib.suppress(FileNotFoundError):
                        os.utime(self._path(file), (used, used), follow_symlinks=False)

    def remove(self, files: Iterable[File]) -> None:
        """Remove blocks that may be gone."""
        for file in files:
            self._known.discard(file)
            with contextlib.suppress(SessionUnknown, FileNotFoundError), self._opened(file) as (folder, name):
                size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
                remove_file(folder, name)
                self.nbytes -= size

    def keep_owners(self) -> None:
        """Remove what belongs to keys that no longer open this server."""
        tags = self.names.tags()
        if tags is None or self._shared:
            return
        for owner in self._folder.glob("*/*"):
            if owner.is_dir() and not owner.is_symlink() and owner.name not in tags:
                shutil.rmtree(owner, ignore_errors=True)
        known = self._known.copy()  # while a reader adds to it
        self._known.difference_update({file for file in known if file[0].partition("/")[0] not in tags})

    def note_session(self, owner: str, session_id: str, blocks: Iterable[str]) -> None:
        """A session's sequence held these blocks: it has them, and what it had. Raises OSError."""
        tag, name = self.names.tag(owner), self.names.session(session_id)
        file = self._folder / self._space / tag / SESSIONS / name
        had = (block for block in noted(file) if (block, False) in self._known)
        with opened_folder(self._folder, (self._space, tag, SESSIONS), create=True) as folder:
            used = self._clock() + GRACE + 1  # not to go before its blocks
            write_note(folder, name, dict.fromkeys((*had, *blocks)), used)

    def forget_session(self, owner: str, session_id: str) -> None:
        """Remove what a session had and no other session has, of every space."""
        tag, name = self.names.tag(owner), self.names.session(session_id)
        for folder in self._folder.glob(f"*/{tag}/{SESSIONS}"):
            for block in only_noted_in(folder, name):
                for sliding in (False, True):
                    (folder.parent / _part(sliding) / block.rpartition("/")[2]).unlink(missing_ok=True)
                    self._known.discard((block, sliding))
            (folder / name).unlink(missing_ok=True)

    def trim(self) -> None:
        """Remove what was not used for longest, as far as there is too much."""
        entries = list(self._entries())
        removed = to_remove(entries, self._clock(), self._limit)
        for one in removed:
            pathlib.Path(one.path).unlink(missing_ok=True)
            if (file := self._file(one.path)) is not None:
                self._known.discard(file)
        self._unseen = 0
        self.nbytes = sum(one.size for one in entries) - sum(one.size for one in removed)

    def _entries(self) -> Iterator[Entry]:
        """All files of blocks, of every space; those that were never finished are removed."""
        for path in self._folder.glob("*/*/*/*"):
            with contextlib.suppress(FileNotFoundError):
                about = path.stat(follow_symlinks=False)
                if not path.name.startswith("."):
                    yield Entry(str(path), about.st_size, about.st_mtime)
                elif about.st_mtime < self._clock() - _STALE:
                    path.unlink()

    def _file(self, path: str) -> File | None:
        space, tag, part, name = pathlib.PurePath(path).parts[-4:]
        return (f"{tag}/{name}", part == _part(True)) if space == self._space and part != SESSIONS else None

    def _path(self, file: File) -> pathlib.Path:
        tag, _, name = file[0].partition("/")
        return self._folder / self._space / tag / _part(file[1]) / name

    @contextlib.contextmanager
    def _opened(self, file: File, *, create: bool = False) -> Iterator[tuple[int, str]]:
        tag, _, name = file[0].partition("/")
        with opened_folder(self._folder, (self._space, tag, _part(file[1])), create=create) as folder:
            yield folder, name

    def _head(self, file: File, size: int) -> bytes:
        text = f"maple prefix block 1 {self._space} {file[0]} {_part(file[1])} {size}\n"
        return text.encode().ljust(192)

    def _mac(self, head: bytes, data: bytes | memoryview) -> bytes:
        mac = hmac.new(self.names.secret, head, hashlib.sha256)
        mac.update(data)
        return mac.digest()


def _part(sliding: bool) -> str:
    return "sliding" if sliding else "full"
