"""One submitted job as its client sees it: a small mailbox on the event loop's thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable

from maple.engine.api import Finish, Job, Piece
from maple.engine.errors import EngineError, JobCancelled
from maple.engine.stats import JobStatus


class JobTicket:
    """The ``Ticket`` of both engines. Everything here belongs to the event loop's thread.

    The engine's side is ``admit``, ``deliver`` and ``fail``; what it sends after the end is dropped, so a late
    step of a cancelled job needs no special care. Times are ``time.monotonic`` seconds; ``admitted_at`` is 0
    until then. ``place`` tells a ticket's position in the queue, 0 once it runs.
    """

    __slots__ = (
        "_error",
        "_first_at",
        "_generated",
        "_items",
        "_on_cancel",
        "_on_hurry",
        "_place",
        "_waiters",
        "admitted_at",
        "cached_tokens",
        "ended",
        "hurried",
        "job",
        "processed_tokens",
        "submitted_at",
    )

    def __init__(
        self,
        job: Job,
        on_cancel: Callable[[JobTicket], None],
        place: Callable[[JobTicket], int] = lambda _: 0,
        on_hurry: Callable[[JobTicket], None] = lambda _: None,
    ) -> None:
        self.job = job
        self.submitted_at = time.monotonic()
        self.admitted_at = 0.0
        self.cached_tokens = self.processed_tokens = 0
        """Those of the prompt; the engine tells while it computes it."""
        self.ended = self.hurried = False
        self._generated = 0
        self._first_at = 0.0
        self._on_cancel = on_cancel
        self._on_hurry = on_hurry
        self._place = place
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

    def status(self) -> JobStatus:
        """How far the job is; its prompt is computed once anything has been made of it."""
        now, position, total = time.monotonic(), self._place(self), len(self.job.prompt_ids)
        return JobStatus(
            request_id=self.job.request_id,
            owner=self.job.owner,
            state="queued" if position else "decode" if self._first_at else "prefill",
            position=position,
            total=total,
            cached=self.cached_tokens,
            processed=total if self._first_at else max(self.cached_tokens, self.processed_tokens),
            generated=self._generated,
            seconds=now - self.submitted_at,
            decode_seconds=now - self._first_at if self._first_at else 0.0,
        )

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

    def answer_now(self) -> None:
        """Ask for the end of the reasoning; the engine looks at every token."""
        if not self.ended and not self.hurried:
            self.hurried = True
            self._on_hurry(self)

    def is_hurried(self) -> bool:
        """Whether the client waits for the answer; any thread may ask."""
        return self.hurried

    def admit(self) -> None:
        """The job has its slot and memory."""
        self.admitted_at = time.monotonic()
        self._wake()

    def deliver(self, items: Iterable[Piece | Finish]) -> None:
        """Hand over what the engine made, in order; a Finish is the last."""
        if self.ended:
            return
        for item in items:
            self._first_at = self._first_at or time.monotonic()
            self._generated += len(item.offsets) if isinstance(item, Piece) else 0
            self._items.append(item)
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
