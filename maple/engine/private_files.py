"""Files that only the server may read, in folders that others may meddle with, on disks that may hang.

Everything is opened relative to a folder that was opened before, and no link is followed. Functions here block, but
no lock is waited for longer than LOCK_SECONDS. By hand: filelock opens by a path, through whatever links are in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
import time
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from maple.engine.errors import SessionBusy, SessionTampered, SessionUnknown

LOCK_SECONDS = 5.0
SECRET_BYTES = 32
_LOCK_POLL = 0.02
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def locked_folder(root: pathlib.Path, names: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder below ``root``, which nobody else has meanwhile; gone afterwards if it is empty.

    Raises SessionUnknown where it is missing or no folder, and SessionBusy where somebody keeps it for too long.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    with opened_folder(root, names[:-1], create=create) as parent, contextlib.ExitStack() as stack:
        folder = _locked(parent, names[-1], deadline, stack, create=create)
        try:
            yield folder
        finally:
            if not os.listdir(folder):  # noqa: PTH208 -- a descriptor, not a path
                with contextlib.suppress(OSError):
                    os.rmdir(names[-1], dir_fd=parent)


def _locked(parent: int, name: str, deadline: float, stack: contextlib.ExitStack, *, create: bool) -> int:
    """The folder's descriptor, closed by ``stack``: of one that is still there once it is locked."""
    while True:
        with contextlib.ExitStack() as attempt:
            try:
                folder = attempt.enter_context(opened_folder(parent, [name], create=create))
            except SessionUnknown:
                if create and time.monotonic() < deadline:
                    continue  # it was deleted as soon as it was made
                raise
            _lock(folder, deadline)
            if _is_still(folder, parent, name):
                stack.push(attempt.pop_all())
                return folder


@contextlib.contextmanager
def opened_folder(root: pathlib.Path | int, names: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """A descriptor of a folder. ``create`` makes those below ``root``, for good. Raises SessionUnknown."""
    with contextlib.ExitStack() as stack:
        try:
            folder = (
                root if isinstance(root, int) else os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            )
            if not isinstance(root, int):
                stack.callback(os.close, folder)
            for name in names:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=folder)
                        os.fsync(folder)
                folder = os.open(name, _FOLDER, dir_fd=folder)
                stack.callback(os.close, folder)
        except (FileNotFoundError, NotADirectoryError):
            raise SessionUnknown from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise SessionUnknown from None
            raise
        yield folder


def _lock(folder: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise SessionBusy from None
            time.sleep(_LOCK_POLL)
        else:
            return


def _is_still(folder: int, parent: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), os.stat(name, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def opened_file(folder: int, name: str) -> Iterator[BinaryIO]:
    """A plain file, to be read. Raises FileNotFoundError, or SessionTampered for anything else."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SessionTampered(f"{name} is a link") from error
        raise
    with open(descriptor, "rb") as file:  # noqa: PTH123 -- a descriptor, not a path
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SessionTampered(f"{name} is not a file")
        yield file


def read_file(folder: int, name: str, most: int) -> bytes:
    """A plain file's content, at most one byte more than ``most``. Raises as ``opened_file``."""
    with opened_file(folder, name) as file:
        return file.read(most + 1)


def write_file(folder: int, name: str, *parts: bytes | memoryview, sync: bool = True) -> None:
    """Put a file of these parts in place, whole and on the disk, or leave what was there.

    Without ``sync`` a machine that loses its power may leave part of it.
    """
    temporary = f".{os.urandom(8).hex()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 -- a descriptor, not a path
            file.writelines(parts)
            if sync:
                file.flush()
                os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        remove_file(folder, temporary)
        raise
    if sync:
        os.fsync(folder)


def kept_secret(folder: pathlib.Path, name: str) -> bytes:
    """The folder's secret of that name; a new one where there is none. Raises OSError.

    Two servers that start at once agree: one file is made.
    """
    file, draft = folder / name, folder / f".{os.urandom(8).hex()}.new"
    while True:
        with contextlib.suppress(FileNotFoundError):
            if len(secret := file.read_bytes()) == SECRET_BYTES:
                return secret
            file.unlink()  # a machine lost its power while it was made
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(os.urandom(SECRET_BYTES))
        try:
            file.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()


def remove_file(folder: int, name: str) -> None:
    """Remove a file that may be gone."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
