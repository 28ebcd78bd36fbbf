"""One front's tie to one replica: its stream, its beat, and the flights that are there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs
import structlog

from maple.cluster.messages import Batch, Fleet, Greeting, ReplicaGone
from maple.cluster.routing import PIECE, Candidate, Held
from maple.engine.errors import EngineError
from maple.engine.stats import EngineStats, ReplicaLoad
from maple.engine.ticket import JobTicket

BEAT_SECONDS = 0.5
"""How often a replica is asked how it is."""

_BEAT_TIMEOUT = 20.0  # a replica that says nothing for so long is lost, whatever its stream does

log = structlog.get_logger(__name__)


@attrs.define(eq=False)
class Flight:
    """A job that has its slot at this front: on which link, under which number, and whether any of it came back.

    ``tries`` counts the replicas that it was given to; ``hashes`` are its prompt's, as ``routing.chain`` makes them.
    """

    ticket: JobTicket
    hashes: tuple[int, ...]
    number: int = 0
    link: Link | None = None
    sent: bool = False
    tries: int = 0
    task: asyncio.Task[None] | None = None


class Link:
    """Greets a replica, takes what its stream brings, and beats until it is lost or let go.

    ``on_ready``, ``on_batch`` and ``on_lost`` are called on the loop; the last exactly once.
    """

    def __init__(
        self,
        name: str,
        front: str,
        fleet: Fleet,
        *,
        on_ready: Callable[[Link], None],
        on_batch: Callable[[Link, Batch], None],
        on_lost: Callable[[Link], None],
    ) -> None:
        self.name = name
        self.greeting: Greeting | None = None
        self.stats = EngineStats()
        self.flights: dict[int, Flight] = {}
        self.leaving = False
        """It gets no new jobs: the deployment has taken it out."""
        self.held = Held()
        self._elsewhere = 0  # other fronts' jobs there, as of the last beat
        self._front = front
        self._fleet = fleet
        self._upto = 0
        self._mark = 0
        self._ready, self._batch, self._lost = on_ready, on_batch, on_lost
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def open(self) -> bool:
        """Whether it takes jobs."""
        return self.greeting is not None and not self.leaving

    def candidate(self) -> Candidate:
        """What routing has to know of it. Only where it is open."""
        slots = self.greeting.slots if self.greeting is not None else 0
        return Candidate(load=len(self.flights) + self._elsewhere, slots=slots, held=self.held)

    def told(self) -> ReplicaLoad | None:
        """For the fleet's counts; None until it has greeted."""
        if self.greeting is None:
            return None
        return ReplicaLoad(
            replica=self.name,
            node=self.greeting.node,
            slots=self.greeting.slots,
            load=self.candidate().load,
            held_tokens=len(self.held) * PIECE,
        )

    def take(self, flight: Flight, number: int) -> None:
        """Note that a flight goes there under this number, the highest so far."""
        flight.link, flight.number, self._upto = self, number, number
        self.flights[number] = flight
        self.held.add(flight.hashes)

    def let_go(self) -> None:
        """End the tie; what is still there is lost."""
        self._task.cancel()

    async def closed(self) -> None:
        """Return when the tie has ended."""
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            self.greeting = await self._fleet.call(self.name, "hello", self._front)
            self._ready(self)
            async with asyncio.TaskGroup() as group:
                beats = group.create_task(self._beat())
                async for batch in self._fleet.attach(self.name, self._front):
                    self._batch(self, batch)
                beats.cancel()
        except* (ReplicaGone, EngineError, TimeoutError) as errors:
            log.warning("cluster.replica_lost", replica=self.name, reason=str(errors.exceptions[0]))
        finally:
            self.greeting = None
            self._lost(self)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            live, upto = frozenset(self.flights), self._upto
            async with asyncio.timeout(_BEAT_TIMEOUT):
                beat = await self._fleet.call(self.name, "beat", self._front, live, upto, self._mark)
            self.stats, self._mark = beat.stats, beat.mark
            self.held.add(beat.held)
            self._elsewhere = max(0, beat.stats.running + beat.stats.waiting - len(live))
