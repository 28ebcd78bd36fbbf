"""Locks on files that the kernel frees when their holder dies; no-ops where the platform has none."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from types import TracebackType
from typing import IO

if sys.platform != "win32":
    import fcntl

__all__ = ["hold", "hold_temporary", "is_free"]


class _Held:
    def __init__(self, file: IO[bytes], remove: pathlib.Path | None = None) -> None:
        self._file = file
        self._remove = remove

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._remove is not None:
            self._remove.unlink(missing_ok=True)
        self._file.close()


def hold(path: pathlib.Path) -> _Held:
    """Create `path` if need be and lock it, waiting for another holder; leaving the block frees it."""
    file = path.open("ab")
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            file.close()
            raise
    return _Held(file)


def hold_temporary(path: pathlib.Path) -> _Held:
    """As `hold`, and the file is removed at the end."""
    while True:
        file = hold(path)._file
        # Whoever held it before us may have removed it, and then somebody else may hold a newer one.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return _Held(file, path)
        file.close()


def is_free(path: pathlib.Path) -> bool:
    """Whether nobody holds `path`; a file that is not there counts as free, an unlockable one as held."""
    if sys.platform == "win32":  # pragma: no cover
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
