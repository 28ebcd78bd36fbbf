"""One front's jobs on their way: to which replica each goes, and what becomes of it when that is lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import attrs
import structlog

from maple.cluster.fleet_sessions import FleetSessions
from maple.cluster.link import Flight, Link
from maple.cluster.messages import Admitted, Batch, Fleet, Item, ReplicaGone
from maple.cluster.routing import chain, choose
from maple.engine.admission import Admission, QueueLimits
from maple.engine.api import Finish
from maple.engine.errors import EngineError, EngineOverloaded, ReplicaLost, ShuttingDown
from maple.engine.ticket import JobTicket

_TRIES = 2  # replicas that a job is given to before it fails with the last of them
_FULL_SECONDS = 0.05  # another front has filled the replica that was chosen: look again then

log = structlog.get_logger(__name__)


class Flights:
    """Every job of the front called ``front`` that has its slot, from the slot to its end.

    ``links`` are the ties that take jobs now. Who waits and in which order is the ``admission``'s.
    """

    def __init__(
        self, fleet: Fleet, front: str, limits: QueueLimits, links: Callable[[], list[Link]]
    ) -> None:
        self._fleet = fleet
        self._name = front
        self._open_links = links
        self.sessions = FleetSessions(fleet, links)
        self.admission = Admission(
            attrs.evolve(limits, slots=1), start=self._start_job, abort=self._abort_job, hurry=self._hurry_job
        )
        self.admission.slots = 0
        self._changed = asyncio.Event()
        self._numbers = itertools.count(1)
        self._flights: dict[JobTicket, Flight] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def resize(self) -> None:
        """As many jobs run as the open links have slots for."""
        self.admission.resize(sum(one.candidate().slots for one in self._open_links()))
        self._wake()

    def lost(self, link: Link) -> None:
        """Whatever was there goes elsewhere, or ends."""
        flights, link.flights = list(link.flights.values()), {}
        self.resize()
        for flight in flights:
            self._again(flight, ReplicaLost())

    async def settle(self) -> None:
        """Return when every flight has been told of its end."""
        await asyncio.gather(*self._ending)

    def take(self, link: Link, batch: Batch) -> None:
        """What a step of a replica made."""
        for number, item in batch:
            if (flight := link.flights.get(number)) is not None:
                self._on_item(flight, item)

    def end_if_idle(self, link: Link) -> None:
        """Let a replica go that leaves and has nothing of ours."""
        if link.leaving and not link.flights:
            link.let_go()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _start_job(self, ticket: JobTicket) -> None:
        flight = Flight(ticket, chain(ticket.job.owner, ticket.job.prompt_ids))
        self._flights[ticket] = flight
        self._launch(flight)

    def _launch(self, flight: Flight) -> None:
        flight.task = asyncio.get_running_loop().create_task(self._submit(flight))
        self._ending.add(flight.task)
        flight.task.add_done_callback(self._ending.discard)

    async def _submit(self, flight: Flight) -> None:
        """Give a flight to a replica; one that is gone or full is not the last word."""
        while not flight.ticket.ended:
            link = self._choose(flight)
            if link is None:
                await self._room()
                continue
            link.take(flight, next(self._numbers))
            flight.tries += 1
            try:
                await self._fleet.call(link.name, "submit", self._name, flight.number, flight.ticket.job)
            except EngineOverloaded:
                flight.tries -= 1
                self._detach(flight)
                await self._room()
            except ReplicaGone:
                if flight.link is link:
                    self._detach(flight)
                    self._again(flight, ReplicaLost())
                return
            except EngineError as error:
                self._end(flight, error)
                return
            else:
                if flight.ticket.hurried:
                    await self._tell_hurry(flight)
                return
        self._detach(flight)
        self._end(flight, None)

    async def _room(self) -> None:
        """Return when a replica may have room."""
        try:
            async with asyncio.timeout(_FULL_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            return

    def _choose(self, flight: Flight) -> Link | None:
        links = {link.name: link for link in self._open_links()}
        job = flight.ticket.job
        stuck = self.sessions.where(job.owner, job.session_id)
        name = choose({name: link.candidate() for name, link in links.items()}, flight.hashes, stuck)
        if name is None:
            return None
        self.sessions.stick(job.owner, job.session_id, name)
        return links[name]

    def _again(self, flight: Flight, error: EngineError) -> None:
        """A flight's replica is lost: nobody saw anything of it yet, or somebody did."""
        if flight.ticket.ended or flight.sent or flight.tries >= _TRIES or self.admission.draining:
            self._end(flight, error)
        else:
            log.info("cluster.job_runs_again", request_id=flight.ticket.job.request_id)
            self._launch(flight)

    def _detach(self, flight: Flight) -> None:
        if flight.link is not None:
            flight.link.flights.pop(flight.number, None)
            self.end_if_idle(flight.link)
            flight.link = None

    def _end(self, flight: Flight, error: EngineError | None) -> None:
        """A flight is over: first its slot, so that whoever hears of the end finds it free."""
        self._detach(flight)
        self._flights.pop(flight.ticket, None)
        self.admission.release(flight.ticket)
        if error is not None:
            flight.ticket.fail(error)
        self._wake()

    def _abort_job(self, ticket: JobTicket) -> None:
        """The client has left: its replica is told as soon as it has the job."""
        task = asyncio.get_running_loop().create_task(self._cancel(self._flights[ticket]))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _hurry_job(self, ticket: JobTicket) -> None:
        """The client waits for the answer: a replica that has the job is told now, another with the job."""
        flight = self._flights.get(ticket)
        if flight is not None and flight.task is not None and flight.task.done():
            task = asyncio.get_running_loop().create_task(self._tell_hurry(flight))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _tell_hurry(self, flight: Flight) -> None:
        try:
            if flight.link is not None:
                await self._fleet.call(flight.link.name, "answer_now", self._name, flight.number)
        except (ReplicaGone, EngineError) as error:  # the job itself goes on, elsewhere or to its own end
            log.info("cluster.hurry_unheard", request_id=flight.ticket.job.request_id, reason=str(error))

    async def _cancel(self, flight: Flight) -> None:
        if flight.task is not None and not flight.task.done():
            await asyncio.wait({flight.task})
        try:
            if flight.link is not None:
                await self._fleet.call(flight.link.name, "cancel", self._name, flight.number)
        except (ReplicaGone, EngineError) as error:
            log.info("cluster.cancel_unheard", request_id=flight.ticket.job.request_id, reason=str(error))
        finally:
            self._end(flight, None)

    def _on_item(self, flight: Flight, item: Item) -> None:
        match item:
            case Admitted():
                self.admission.opened(flight.ticket)
            case Finish():
                self._end(flight, None)
                flight.ticket.deliver([self._finish(flight, item)])
            case ShuttingDown():
                self._detach(flight)
                self._again(flight, ReplicaLost())
            case EngineError():
                self._end(flight, item)
            case _:
                flight.sent = True
                flight.ticket.deliver([item])

    def _finish(self, flight: Flight, item: Finish) -> Finish:
        return attrs.evolve(item, queue_seconds=item.queue_seconds + flight.ticket.queue_seconds)
