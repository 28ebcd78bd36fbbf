"""Threads for saved sessions alone: a disk or a lock that hangs holds up nothing but what needs it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

import structlog

from maple.engine.api import SessionBusy

__all__ = ["FileThreads"]

log = structlog.get_logger(__name__)
T = TypeVar("T")

THREADS = 4
SECONDS = 60.0
"""The longest wait for a file: gigabytes take their time."""


class FileThreads:
    """Used on the event loop."""

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="maple-files")

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. Raises SessionBusy if that takes too long; its thread is left to it."""
        try:
            async with asyncio.timeout(SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            log.error("session.disk_hangs", seconds=SECONDS)  # noqa: TRY400 -- there is nothing else to tell
            raise SessionBusy from None

    def close(self) -> None:
        """Begin nothing more; what hangs is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
