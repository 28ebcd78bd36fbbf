"""Threads for files, which may hang: each wait for them is bounded, and none holds up the process's end.

A pool of asyncio's own would not do: one that hangs in it holds up what else uses it, and the interpreter waits
for its threads at exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from maple.engine.errors import SessionBusy, ShuttingDown

log = structlog.get_logger(__name__)
T = TypeVar("T")


class FileThreads:
    """Runs functions on daemon threads, ``most`` at a time and half of them for one owner.

    Its methods belong to the event loop. A function that does not return within ``timeout`` seconds is left behind
    with its thread, and counts until it does. ``hangs`` is how the log tells of it, if it does.
    """

    def __init__(
        self, *, most: int = 8, timeout: float = 60.0, hangs: str | None = "session.disk_hangs"
    ) -> None:
        self._most = most
        self._timeout = timeout
        self._hangs = hangs
        self._busy: Counter[str] = Counter()
        self._answers: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def run(self, owner: str, function: Callable[[], T]) -> T:
        """What the function returns or raises; SessionBusy after the timeout or with too many at work already."""
        if self._closed:
            raise ShuttingDown
        if self._busy.total() >= self._most or self._busy[owner] >= self._most // 2:
            raise SessionBusy
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._busy[owner] += 1
        self._answers.add(answer)
        threading.Thread(
            target=self._main, args=(owner, function, answer), name="maple-files", daemon=True
        ).start()
        try:
            async with asyncio.timeout(self._timeout):
                return await answer
        except TimeoutError:
            if self._hangs is not None:
                log.error(self._hangs, seconds=self._timeout)  # noqa: TRY400 -- there is nothing else to tell
            raise SessionBusy from None
        finally:
            self._answers.discard(answer)

    def close(self) -> None:
        """Wait for nothing any more: calls under way raise ShuttingDown."""
        self._closed = True
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(ShuttingDown())

    def _main(self, owner: str, function: Callable[[], T], answer: asyncio.Future[T]) -> None:
        result, error = None, None
        try:
            result = function()
        except Exception as raised:  # handed to whoever awaits the answer
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            answer.get_loop().call_soon_threadsafe(self._ended, owner, answer, result, error)

    def _ended(
        self, owner: str, answer: asyncio.Future[Any], result: object, error: Exception | None
    ) -> None:
        self._busy[owner] -= 1
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
