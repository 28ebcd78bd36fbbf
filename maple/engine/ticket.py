"""One submitted job as its client sees it: a small mailbox on the event loop's thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from maple.engine.api import EngineError, Finish, Job, JobCancelled, Piece

__all__ = ["JobTicket"]


class JobTicket:
    """The `Ticket` of both engines. Everything here belongs to the event loop's thread.

    The engine's side is `admit`, `deliver` and `fail`; what it sends after the end is dropped, so a late
    step of a cancelled job needs no special care. Times are `time.monotonic` seconds; `admitted_at` is 0
    until then.
    """

    __slots__ = ("_error", "_items", "_on_cancel", "_waiters", "admitted_at", "ended", "job", "submitted_at")

    def __init__(self, job: Job, on_cancel: Callable[[JobTicket], None]) -> None:
        self.job = job
        self.submitted_at = time.monotonic()
        self.admitted_at = 0.0
        self.ended = False
        self._on_cancel = on_cancel
        self._items: deque[Piece | Finish] = deque()
        self._error: EngineError | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def has_ended(self) -> bool:
        """Whether the job is over for its client; any thread may ask."""
        return self.ended

    @property
    def queue_seconds(self) -> float:
        """Time from submission until the job could begin, or until now."""
        return (self.admitted_at or time.monotonic()) - self.submitted_at

    async def admitted(self) -> None:
        """Return when the job has its slot and memory, or raise what ended it before."""
        while not self.admitted_at:
            if self._error is not None:
                raise self._error
            await self._change()

    def __aiter__(self) -> JobTicket:
        return self

    async def __anext__(self) -> Piece | Finish:
        while not self._items:
            if self._error is not None:
                raise self._error
            if self.ended:
                raise StopAsyncIteration
            await self._change()
        return self._items.popleft()

    def cancel(self) -> None:
        """Drop the job; a no-op once it has ended."""
        if not self.ended:
            self.fail(JobCancelled())
            self._items.clear()
            self._on_cancel(self)

    def admit(self) -> None:
        """The job has its slot and memory."""
        self.admitted_at = time.monotonic()
        self._wake()

    def deliver(self, items: Iterable[Piece | Finish]) -> None:
        """Hand over what the engine made, in order; a Finish is the last."""
        if self.ended:
            return
        self._items.extend(items)
        if self._items:
            self.ended = isinstance(self._items[-1], Finish)
            self._wake()

    def fail(self, error: EngineError) -> None:
        """End the job with an error, which is raised once all that was delivered before has been read."""
        if not self.ended:
            self.ended = True
            self._error = error
            self._wake()

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:  # its task was cancelled while it waited
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
