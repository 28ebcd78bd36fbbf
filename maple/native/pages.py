"""Bring a mapped file into memory before it is needed."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

__all__ = ["touch"]

_BLOCK = 64 << 20
_PAGE = 4096


def touch(
    path: pathlib.Path, arrays: list[npt.NDArray[np.uint8]], *, threads: int, cancelled: Callable[[], bool]
) -> None:
    """Touch every page of `arrays`, views of the file at `path`, while the system reads ahead.

    Stops early, without an error, once `cancelled` says yes.
    """
    blocks = [array[i : i + _BLOCK] for array in arrays for i in range(0, array.size, _BLOCK)]

    def touch_block(block: npt.NDArray[np.uint8]) -> None:
        if not cancelled():
            block[::_PAGE].max()

    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        with ThreadPoolExecutor(threads, thread_name_prefix="maple-preload") as pool:
            list(pool.map(touch_block, blocks))
