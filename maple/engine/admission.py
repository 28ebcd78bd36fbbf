"""Who generates and who waits: slots, turns by key, depth and timeout of the queue, cancellation, drain.

Both engines stand behind it. It lives on the event loop's thread, so a full queue can be refused at once, a
waiter that leaves costs the model nothing, and the counts need no lock.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator

import attrs
import structlog

from maple.engine.api import Job
from maple.engine.errors import EngineError, EngineOverloaded, GenerationFailed, ShuttingDown
from maple.engine.stats import JobStatus, Queued
from maple.engine.ticket import JobTicket

log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class QueueLimits:
    """``slots`` ≥ 1 jobs run at a time; ``depth`` ≥ 0 more of each key may wait, ``timeout`` seconds at most. Siblings
    wait beyond both.

    ``slots`` None leaves their number to what is loaded.
    """

    slots: int | None = 1
    depth: int = 16
    timeout: float = 600.0


class Admission:
    """Gives jobs their slots: keys take turns, and each key's jobs go in the order in which they came.

    ``start`` is called with each ticket that gets a slot, ``abort`` when a ticket that holds one is cancelled,
    ``hurry`` when one's client asks for its answer; the engine answers each start with one ``release`` (a further one
    is harmless), at which the slot goes to the next waiter. Until it has called ``opened``, it may ``park`` a ticket
    that waits for memory, which then waits like one without a slot. ``cancelled`` counts each cancelled job once; the
    engine adds those that never came to be submitted.
    """

    def __init__(
        self,
        limits: QueueLimits,
        *,
        start: Callable[[JobTicket], None],
        abort: Callable[[JobTicket], None] | None = None,
        hurry: Callable[[JobTicket], None] = lambda _: None,
    ) -> None:
        self.cancelled = 0
        self.draining = False
        self.slots = limits.slots or 1
        self._limits = limits
        self._start = start
        self._abort = abort
        self._hurry = hurry
        self._queues: OrderedDict[str, dict[JobTicket, None]] = (
            OrderedDict()
        )  # by owner, whose turn it is first
        self._slots: dict[JobTicket, None] = {}
        self._timers: dict[JobTicket, asyncio.TimerHandle] = {}  # of all that wait
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Slots in use but by parked jobs; a cancelled job holds its own until the engine has let go of it."""
        return len(self._slots) - sum(ticket in self._timers for ticket in self._slots)

    @property
    def waiting(self) -> int:
        """Jobs without a slot, or without the memory that they need to run."""
        return len(self._timers)

    def queue(self) -> tuple[Queued, ...]:
        """The waiting jobs in the order of their turns."""
        now = time.monotonic()
        return tuple(
            Queued(request_id=one.job.request_id, position=place, seconds=round(now - one.submitted_at, 3))
            for place, one in enumerate(self._in_turn(), 1)
        )

    def jobs(self) -> tuple[JobStatus, ...]:
        """Those that run, then those that wait."""
        running = [ticket for ticket in self._slots if ticket not in self._timers]
        return tuple(ticket.status() for ticket in (*running, *self._in_turn()))

    def refuse_if_draining(self) -> None:
        """Raises ShuttingDown once nothing new is taken."""
        if self.draining:
            raise ShuttingDown

    def submit(self, job: Job) -> JobTicket:
        """Start the job or queue it. Raises ShuttingDown, or EngineOverloaded if its key's queue is full."""
        self.refuse_if_draining()
        ticket = JobTicket(job, self._on_cancel, self._place, self._hurry)
        if len(self._slots) < self.slots:
            self._admit(ticket)
        elif job.sibling or self._depth(job.owner) < self._limits.depth:
            self._queues.setdefault(job.owner, {})[ticket] = None
            self._start_timer(ticket)
        else:
            raise EngineOverloaded("queue_full")
        self._note_idle()
        return ticket

    def _depth(self, owner: str) -> int:
        """Requests of a key that wait; the further choices of one are not counted again."""
        return sum(not ticket.job.sibling for ticket in self._queues.get(owner, ()))

    def opened(self, ticket: JobTicket) -> None:
        """The engine has what the ticket needs: it runs."""
        self._stop_timer(ticket)
        ticket.admit()

    def park(self, ticket: JobTicket) -> None:
        """The ticket has a slot, but waits for memory."""
        if ticket in self._slots and ticket not in self._timers and not ticket.ended:
            self._start_timer(ticket)

    def release(self, ticket: JobTicket) -> None:
        """The engine is done with the ticket: its slot is free."""
        self._stop_timer(ticket)
        self._slots.pop(ticket, None)
        self._admit_waiting()
        self._note_idle()

    def resize(self, slots: int) -> None:
        """So many jobs run at a time from now on: what waits gets the new slots, what runs keeps its own."""
        self.slots = slots
        self._admit_waiting()

    def release_all(self) -> None:
        """The engine is done with every ticket it was given."""
        self._slots.clear()
        self._note_idle()

    def evict(self, error: Callable[[], EngineError]) -> int:
        """End every job with an error of its own: how many. Slots come back as the engine releases them."""
        evicted = [one for one in dict.fromkeys((*self._in_turn(), *self._slots)) if not one.ended]
        self._queues.clear()
        for ticket in evicted:
            self._stop_timer(ticket)
            ticket.fail(error())
            self._abort_started(ticket)
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

    def _admit_waiting(self) -> None:
        while self._queues and len(self._slots) < self.slots:
            self._admit(self._next())

    def _in_turn(self) -> Iterator[JobTicket]:
        """Whoever waits: parked jobs, then the queues' in turn."""
        yield from (ticket for ticket in self._slots if ticket in self._timers)
        for round_ in itertools.zip_longest(*self._queues.values()):
            yield from filter(None, round_)

    def _place(self, ticket: JobTicket) -> int:
        """The position of a job that waits, from 1; 0 for one that runs."""
        return next((place for place, one in enumerate(self._in_turn(), 1) if one is ticket), 0)

    def _next(self) -> JobTicket:
        """Take the first job of the key whose turn it is; the key's next turn comes after all others'."""
        owner, queue = self._queues.popitem(last=False)
        ticket = next(iter(queue))
        del queue[ticket]
        if queue:
            self._queues[owner] = queue
        self._stop_timer(ticket)
        return ticket

    def _admit(self, ticket: JobTicket) -> None:
        """Give a slot and start; whatever fails gives it back."""
        self._slots[ticket] = None
        try:
            self._start(ticket)
        except Exception:
            log.exception("engine.start_failed", request_id=ticket.job.request_id)
            del self._slots[ticket]
            ticket.fail(GenerationFailed())

    def _start_timer(self, ticket: JobTicket) -> None:
        since = time.monotonic() if ticket.job.sibling else ticket.submitted_at
        left = since + self._limits.timeout - time.monotonic()
        self._timers[ticket] = asyncio.get_running_loop().call_later(max(0.0, left), self._expire, ticket)

    def _stop_timer(self, ticket: JobTicket) -> None:
        if (timer := self._timers.pop(ticket, None)) is not None:
            timer.cancel()

    def _expire(self, ticket: JobTicket) -> None:
        if ticket.job.sibling:  # it comes after others of its request, however long these take
            self._start_timer(ticket)
            return
        ticket.fail(EngineOverloaded("queue_timeout"))
        self._leave(ticket)

    def _on_cancel(self, ticket: JobTicket) -> None:
        self.cancelled += 1
        self._leave(ticket)

    def _leave(self, ticket: JobTicket) -> None:
        """The ticket has ended: it waits no more, and what has started is aborted."""
        self._stop_timer(ticket)
        queue = self._queues.get(ticket.job.owner, {})
        if ticket in queue:
            del queue[ticket]
            if not queue:
                del self._queues[ticket.job.owner]
            self._note_idle()
        self._abort_started(ticket)

    def _abort_started(self, ticket: JobTicket) -> None:
        if self._abort is not None and ticket in self._slots:
            self._abort(ticket)

    def _note_idle(self) -> None:
        if self._slots or self._queues:
            self._idle.clear()
        else:
            self._idle.set()
