"""One replica's side: today's engine, with a mailbox for each front. Everything is on the replica's event loop."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import attrs
import structlog

from maple.cluster.messages import Admitted, Batch, Beat, Greeting, Item
from maple.cluster.routing import PIECE, chain
from maple.engine.api import Engine, Job, Ticket
from maple.engine.errors import EngineError, ModelFailed
from maple.engine.stats import ReplicaLoad

FRONT_SILENCE = 15.0
"""Seconds without a beat after which a front is given up, with all its jobs."""

_REMEMBERED = 1 << 14  # hashes kept for fronts that have yet to hear of them

_CALLS = ("hello", "submit", "cancel", "answer_now", "beat", "bye", "session")

log = structlog.get_logger(__name__)


@attrs.define(eq=False)
class _Front:
    """What one front has here: its jobs by number, and what is to be sent."""

    jobs: dict[int, Ticket] = attrs.Factory(dict)
    outbox: list[tuple[int, Item]] = attrs.Factory(list)
    filled: asyncio.Event = attrs.Factory(asyncio.Event)
    heard: float = attrs.Factory(time.monotonic)
    closed: bool = False

    def put(self, number: int, item: Item) -> None:
        self.outbox.append((number, item))
        self.filled.set()

    def close(self) -> None:
        """Cancel all that runs for it, and end its stream."""
        self.closed = True
        for ticket in self.jobs.values():
            ticket.cancel()
        self.jobs.clear()
        self.filled.set()


class ReplicaHost:
    """Runs the jobs of any number of fronts on one engine. ``node`` names the machine."""

    def __init__(self, engine: Engine, *, node: str) -> None:
        self._engine = engine
        self._node = node
        self._fronts: dict[str, _Front] = {}
        self._pumps: set[asyncio.Task[None]] = set()
        self._held: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        self._marks = itertools.count(1)

    async def open(self) -> None:
        """Load the model. Raises ModelFailed."""
        self._engine.start()
        await self._engine.loaded()
        self.check()

    def check(self) -> None:
        """Raises ModelFailed where the engine can do no job any more."""
        if self._engine.status == "error":
            raise ModelFailed(self._engine.error or "the engine has ended")

    @property
    def load(self) -> int:
        """Jobs that run or wait here, of all fronts."""
        return sum(len(front.jobs) for front in self._fronts.values())

    def status(self, name: str) -> ReplicaLoad:
        """Its load, under the name that it goes by."""
        return ReplicaLoad(
            replica=name,
            node=self._node,
            slots=self._engine.slots,
            load=self.load,
            held_tokens=len({one for _, one in self._held}) * PIECE,
        )

    def hello(self, front: str) -> Greeting:
        """Take a front on, or take it on anew with nothing left of before."""
        if (before := self._fronts.pop(front, None)) is not None:
            before.close()
        self._fronts[front] = _Front()
        served = self._engine.served
        if served is None:
            raise ModelFailed("the model is not loaded")
        return Greeting(served=served, slots=self._engine.slots, node=self._node)

    async def attach(self, front: str) -> AsyncIterator[Batch]:
        """All that this replica makes for a front, one batch for all that a step made; ends when it is given up."""
        here = self._fronts[front]
        try:
            while True:
                await here.filled.wait()
                await asyncio.sleep(
                    0
                )  # a step wakes every job's pump in one turn of the loop: let them all speak
                here.filled.clear()
                batch, here.outbox = here.outbox, []
                if batch:
                    yield batch
                if here.closed:
                    return
        finally:
            here.close()

    def submit(self, front: str, number: int, job: Job) -> None:
        """Run a job; what becomes of it is sent by ``attach``. Raises what the engine's submit raises."""
        here = self._fronts[front]
        here.jobs[number] = ticket = self._engine.submit(job)
        task = asyncio.get_running_loop().create_task(self._pump(here, number, job, ticket))
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)

    def cancel(self, front: str, number: int) -> None:
        """Drop a job; one that has ended, or never came, is no error."""
        here = self._fronts.get(front)
        if here is not None and (ticket := here.jobs.pop(number, None)) is not None:
            ticket.cancel()

    def answer_now(self, front: str, number: int) -> None:
        """Close a job's reasoning; one that has ended, or never came, is no error."""
        here = self._fronts.get(front)
        if here is not None and (ticket := here.jobs.get(number)) is not None:
            ticket.answer_now()

    def beat(self, front: str, live: frozenset[int], upto: int, mark: int) -> Beat:
        """Note that a front is there, drop those of its jobs up to number ``upto`` that it has no more, and report."""
        if (here := self._fronts.get(front)) is not None:
            here.heard = time.monotonic()
            for number in [number for number in here.jobs if number <= upto and number not in live]:
                self.cancel(front, number)
        self._drop_silent()
        news = list(itertools.takewhile(lambda one: one[0] > mark, reversed(self._held)))[::-1]
        return Beat(
            stats=self._engine.stats(),
            held=tuple(one for _, one in news),
            mark=news[-1][0] if news else mark,
        )

    def bye(self, front: str) -> None:
        """A front leaves: its jobs are dropped."""
        if (here := self._fronts.pop(front, None)) is not None:
            here.close()

    async def answer(self, method: str, *arguments: Any) -> Any:
        """Call one of the methods above by name; what it raises for the front's ears is the answer."""
        if method not in _CALLS:
            raise ValueError(f"no such call: {method}")
        try:
            found = getattr(self, method)(*arguments)
            return await found if inspect.isawaitable(found) else found
        except EngineError as error:
            return error

    async def session(self, method: str, owner: str, session_id: str) -> Any:
        """One of the engine's four calls on sessions, by name."""
        calls = {
            "save": self._engine.save_session,
            "load": self._engine.load_session,
            "manifest": self._engine.session_manifest,
            "delete": self._engine.delete_session,
        }
        return await calls[method](owner, session_id)

    async def close(self) -> None:
        """Drop every front and end the engine."""
        for front in list(self._fronts):
            self.bye(front)
        await self._engine.close()
        await asyncio.gather(*self._pumps)

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for name, front in list(self._fronts.items()):
            if now - front.heard > FRONT_SILENCE:
                log.warning("replica.front_given_up", front=name, jobs=len(front.jobs))
                self.bye(name)

    async def _pump(self, front: _Front, number: int, job: Job, ticket: Ticket) -> None:
        """Put what becomes of one job into its front's outbox."""
        try:
            await ticket.admitted()
            front.put(number, Admitted())
            async for item in ticket:
                front.put(number, item)
            self._remember(job)
        except EngineError as error:
            front.put(number, error)
        finally:
            front.jobs.pop(number, None)

    def _remember(self, job: Job) -> None:
        self._held.extend((next(self._marks), one) for one in chain(job.owner, job.prompt_ids))
