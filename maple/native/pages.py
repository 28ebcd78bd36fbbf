"""Bring a mapped file into memory before it is needed."""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK = 64 << 20
_PAGE = 4096
_READERS = 4
"""Threads that touch pages at least: most of their time they may wait for the disk."""


def read_ahead(arrays: Iterable[npt.NDArray[np.generic]]) -> None:
    """Ask the system to read what ``arrays``, views of mapped files, lie on; does not wait for it.

    Without being asked it reads a mapped file in small steps, each after the other has been waited for.
    """
    if not hasattr(mmap, "MADV_WILLNEED"):
        return
    for array in arrays:
        area = _mapping(array)
        if area is not None and array.nbytes:
            first = array.ctypes.data - np.frombuffer(area, np.uint8, 1).ctypes.data
            start = first // mmap.PAGESIZE * mmap.PAGESIZE
            area.madvise(mmap.MADV_WILLNEED, start, first + array.nbytes - start)


def _mapping(array: npt.NDArray[np.generic]) -> mmap.mmap | None:
    base: Any = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    return mapped if isinstance(mapped, mmap.mmap) else None


def forget(path: pathlib.Path) -> None:
    """Let go of a written file's pages, which are small; when it is mapped they come back as huge ones."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_huge_pages(array: npt.NDArray[np.generic]) -> None:
    """Ask for huge pages in the mapping that ``array`` is a view of, where the system has them for files.

    Streaming weights through small pages costs up to a sixth of the speed of decoding.
    """
    area = _mapping(array)
    if area is not None and sys.platform == "linux":
        with contextlib.suppress(OSError):  # a kernel that was built without them
            area.madvise(mmap.MADV_HUGEPAGE)


def touch(
    arrays: Iterable[npt.NDArray[np.generic]],
    *,
    threads: int,
    cancelled: Callable[[], bool],
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Touch every page of ``arrays``; stops early, without an error, once ``cancelled`` says yes.

    ``report`` hears, in this thread, of the bytes touched and of all.
    """
    runs = [array.reshape(-1).view(np.uint8) for array in arrays]
    blocks = [run[i : i + _BLOCK] for run in runs for i in range(0, run.size, _BLOCK)]

    total = sum(run.size for run in runs)

    def touch_block(block: npt.NDArray[np.uint8]) -> None:
        if not cancelled():
            block[::_PAGE].max()

    with ThreadPoolExecutor(max(threads, _READERS), thread_name_prefix="maple-preload") as pool:
        done = 0
        for block, _ in zip(blocks, pool.map(touch_block, blocks), strict=True):
            done += block.size
            report(done, total)
