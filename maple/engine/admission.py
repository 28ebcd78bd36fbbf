"""Who generates and who waits: slots, a first-in-first-out queue with depth and timeout, cancellation, drain.

Both engines stand behind it. It lives on the event loop's thread, so a full queue can be refused at once, a
waiter that leaves costs the model nothing, and the counts need no lock.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

import attrs

from maple.engine.api import EngineError, EngineOverloaded, Job, Queued, ShuttingDown
from maple.engine.ticket import JobTicket

__all__ = ["Admission", "QueueLimits"]


@attrs.frozen(kw_only=True)
class QueueLimits:
    """``slots`` ≥ 1 jobs run at a time; ``depth`` ≥ 0 more may wait, at most ``timeout`` seconds each."""

    slots: int = 1
    depth: int = 16
    timeout: float = 600.0


class Admission:
    """Gives jobs their slots in the order in which they came.

    ``start`` is called with each ticket that gets a slot, ``abort`` when a ticket that holds one is
    cancelled; the engine answers each start with one `release` (a further one is harmless), at which the
    slot goes to the next waiter. ``cancelled`` counts each cancelled job once; the engine adds those that
    never came to be submitted.
    """

    def __init__(
        self,
        limits: QueueLimits,
        *,
        start: Callable[[JobTicket], None],
        abort: Callable[[JobTicket], None],
    ) -> None:
        self.cancelled = 0
        self.draining = False
        self._limits = limits
        self._start = start
        self._abort = abort
        self._waiting: OrderedDict[JobTicket, asyncio.TimerHandle] = OrderedDict()
        self._running: set[JobTicket] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Slots in use; a cancelled job holds its own until the engine has let go of it."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Jobs without a slot."""
        return len(self._waiting)

    def queue(self) -> tuple[Queued, ...]:
        """The waiting jobs in order."""
        now = time.monotonic()
        return tuple(
            Queued(request_id=one.job.request_id, position=place, seconds=round(now - one.submitted_at, 3))
            for place, one in enumerate(self._waiting, 1)
        )

    def submit(self, job: Job) -> JobTicket:
        """Start the job or queue it. Raises ShuttingDown while draining, EngineOverloaded if full."""
        if self.draining:
            raise ShuttingDown
        ticket = JobTicket(job, self._on_cancel)
        if self.running < self._limits.slots and not self._waiting:
            self._admit(ticket)
        elif self.waiting < self._limits.depth:
            self._enqueue(ticket)
        else:
            raise EngineOverloaded("queue_full")
        self._idle.clear()
        return ticket

    def release(self, ticket: JobTicket) -> None:
        """The engine is done with the ticket: its slot is free."""
        self._running.discard(ticket)
        while self._waiting and self.running < self._limits.slots:
            waiter, timer = self._waiting.popitem(last=False)
            timer.cancel()
            self._admit(waiter)
        self._note_idle()

    def release_all(self) -> None:
        """The engine is done with every ticket it was given."""
        self._running.clear()
        self._note_idle()

    def evict(self, error: Callable[[], EngineError]) -> int:
        """End every job with an error of its own: how many. Slots come back as the engine releases them."""
        evicted = [ticket for ticket in (*self._waiting, *self._running) if not ticket.ended]
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        for ticket in evicted:
            ticket.fail(error())
            if ticket in self._running:
                self._abort(ticket)
        self._note_idle()
        return len(evicted)

    def close(self) -> None:
        """Refuse new jobs and cancel all others with ShuttingDown."""
        self.draining = True
        self.cancelled += self.evict(ShuttingDown)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the engine's own protocol
        """Refuse new jobs and wait for the others; after ``timeout`` seconds evict the rest: False."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            self.close()
            return False
        return True

    def _admit(self, ticket: JobTicket) -> None:
        self._running.add(ticket)
        ticket.admit()
        self._start(ticket)

    def _enqueue(self, ticket: JobTicket) -> None:
        loop = asyncio.get_running_loop()
        self._waiting[ticket] = loop.call_later(self._limits.timeout, self._expire, ticket)

    def _expire(self, ticket: JobTicket) -> None:
        del self._waiting[ticket]
        ticket.fail(EngineOverloaded("queue_timeout"))
        self._note_idle()

    def _on_cancel(self, ticket: JobTicket) -> None:
        self.cancelled += 1
        timer = self._waiting.pop(ticket, None)
        if timer is not None:
            timer.cancel()
            self._note_idle()
        else:
            self._abort(ticket)

    def _note_idle(self) -> None:
        if not self._running and not self._waiting:
            self._idle.set()
