"""The `Engine` whose model runs elsewhere: one front's admission, and its links to the replicas of a fleet.

Order, depth, timeout and positions are this front's admission; a replica's own queue holds no more than its slots.
Everything is on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import uuid

import attrs
import structlog

from maple.cluster.fleet_sessions import FleetSessions
from maple.cluster.link import Flight, Link
from maple.cluster.messages import Admitted, Batch, Fleet, FleetFailed, Item, ReplicaGone
from maple.cluster.routing import chain, choose
from maple.cluster.totals import Totals
from maple.engine.admission import Admission, QueueLimits
from maple.engine.api import (
    EngineError,
    EngineOverloaded,
    EngineStats,
    EngineStatus,
    Finish,
    Job,
    JobStatus,
    ModelFailed,
    ModelLoading,
    ReplicaLost,
    Served,
    SessionLoaded,
    SessionManifest,
    ShuttingDown,
    Ticket,
)
from maple.engine.loading import LoadingGauge
from maple.engine.step_clock import StepClock
from maple.engine.ticket import JobTicket

_TRIES = 2  # replicas that a job is given to before it fails with the last of them
_FULL_SECONDS = 0.05  # another front has filled the replica that was chosen: look again then

_BROKE = "the cluster could not be reached; the server's log says why"

log = structlog.get_logger(__name__)


class RayEngine:
    """Jobs go to the replica of ``fleet`` that holds most of their prompt; whatever is lost of it starts again."""

    def __init__(self, fleet: Fleet, *, limits: QueueLimits) -> None:
        self.loading = LoadingGauge()
        self.steps = StepClock()
        """Never ticks: the steps are the replicas'."""
        self._fleet = fleet
        self._name = uuid.uuid4().hex
        self._links: dict[str, Link] = {}
        self._error: str | None = None
        self._served: Served | None = None
        self._settled = asyncio.Event()
        self._changed = asyncio.Event()
        self._numbers = itertools.count(1)
        self._flights: dict[JobTicket, Flight] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._totals = Totals()
        self._admission = Admission(
            attrs.evolve(limits, slots=1), start=self._start_job, abort=self._abort_job
        )
        self._admission.slots = 0
        self._sessions = FleetSessions(fleet, self._open_links)
        self._starting: asyncio.Task[None] | None = None

    @property
    def status(self) -> EngineStatus:
        """Loading while no replica can be reached, ok while one can, error where there never will be one."""
        if self._error is not None:
            return "error"
        return "ok" if self._open_links() else "loading"

    @property
    def error(self) -> str | None:
        """One line once there is no cluster."""
        return self._error

    @property
    def served(self) -> Served | None:
        """What the first replica that answered serves; None before."""
        return self._served

    @property
    def slots(self) -> int:
        """How many jobs run at a time, on all replicas."""
        return self._admission.slots

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused."""
        return self._admission.draining

    def start(self) -> None:
        """Begin to look for the cluster."""
        self._starting = asyncio.get_running_loop().create_task(self._begin())

    async def loaded(self) -> None:
        """Return when the first replica answers, or there is none to be had."""
        await self._settled.wait()

    def submit(self, job: Job) -> Ticket:
        """Start or queue a job, or raise why not."""
        self._admission.refuse_if_draining()
        if self._error is not None:
            raise ModelFailed(self._error)
        if not self._open_links():
            raise ModelLoading
        if job.sampling.seed is None:  # drawn here, so that a second replica would make the same text
            job = attrs.evolve(job, sampling=attrs.evolve(job.sampling, seed=secrets.randbits(63)))
        return self._admission.submit(job)

    def count_cancelled(self) -> None:
        """Count a client that left before its job could be submitted."""
        self._admission.cancelled += 1

    def stats(self) -> EngineStats:
        """The fleet's counts as of its last beats, this front's queue as of now."""
        return attrs.evolve(
            self._totals.sum(link.stats for link in self._links.values()),
            running=self._admission.running,
            waiting=self._admission.waiting,
            cancelled=self._admission.cancelled,
            queue=self._admission.queue(),
            replicas=tuple(told for link in self._links.values() if (told := link.told()) is not None),
        )

    def jobs(self) -> tuple[JobStatus, ...]:
        """The jobs of this front; what a replica has computed of a prompt is not known before its first token."""
        return self._admission.jobs()

    async def save_session(self, owner: str, session_id: str) -> SessionManifest:
        """Save what is live of a session, on the replica that has it."""
        manifest: SessionManifest = await self._sessions.call("save", owner, session_id)
        return manifest

    async def load_session(self, owner: str, session_id: str) -> SessionLoaded:
        """Make a saved session live on a replica that can read it; it sticks there."""
        loaded: SessionLoaded = await self._sessions.call("load", owner, session_id)
        return loaded

    async def session_manifest(self, owner: str, session_id: str) -> SessionManifest:
        """What the last save was, from a replica that can read it."""
        manifest: SessionManifest = await self._sessions.call("manifest", owner, session_id)
        return manifest

    async def delete_session(self, owner: str, session_id: str) -> None:
        """Forget a session wherever it is."""
        await self._sessions.delete(owner, session_id)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the engine's own protocol
        """Refuse new jobs and wait for the others; False: some had to be ended."""
        return await self._admission.drain(timeout)

    async def close(self) -> None:
        """End every job of this front, and take leave of the replicas, which stay."""
        self._admission.close()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        links = list(self._links.values())
        for link in links:
            link.let_go()
        await asyncio.gather(*(link.closed() for link in links), *self._ending)
        self._admission.release_all()
        await self._fleet.close()

    async def _begin(self) -> None:
        try:
            await self._fleet.start(self._on_fleet)
        except FleetFailed as error:
            log.error("cluster.unusable", reason=str(error))  # noqa: TRY400 - the reason says it all
            self._fail(str(error))
        except Exception:
            log.exception("cluster.unusable")
            self._fail(_BROKE)

    def _fail(self, reason: str) -> None:
        """There will be no replica."""
        self._error = reason
        self._admission.evict(lambda: ModelFailed(reason))
        self._settled.set()

    def _open_links(self) -> list[Link]:
        return [link for link in self._links.values() if link.open]

    def _on_fleet(self, names: frozenset[str]) -> None:
        """The deployment's replicas are these: tie what is new, and let what is gone end its jobs."""
        for name, link in self._links.items():
            if name not in names:
                link.leaving = True
                self._end_if_idle(link)
        for name in names - self._links.keys():
            self._links[name] = Link(
                name,
                self._name,
                self._fleet,
                on_ready=self._on_ready,
                on_batch=self._on_batch,
                on_lost=self._on_lost,
            )
        self._resize()

    def _on_ready(self, link: Link) -> None:
        if link.greeting is not None and self._served is None:
            self._served = link.greeting.served
        log.info("cluster.replica_ready", replica=link.name)
        self._settled.set()
        self._resize()

    def _resize(self) -> None:
        self._admission.resize(sum(one.candidate().slots for one in self._open_links()))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _on_lost(self, link: Link) -> None:
        """Whatever was there goes elsewhere, or ends."""
        self._totals.keep(link.stats)
        self._links.pop(link.name, None)
        self._sessions.forget(link.name)
        flights, link.flights = list(link.flights.values()), {}
        self._resize()
        for flight in flights:
            self._again(flight, ReplicaLost())

    def _end_if_idle(self, link: Link) -> None:
        if link.leaving and not link.flights:
            link.let_go()

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
        stuck = self._sessions.where(job.owner, job.session_id)
        name = choose({name: link.candidate() for name, link in links.items()}, flight.hashes, stuck)
        if name is None:
            return None
        self._sessions.stick(job.owner, job.session_id, name)
        return links[name]

    def _again(self, flight: Flight, error: EngineError) -> None:
        """A flight's replica is lost: nobody saw anything of it yet, or somebody did."""
        if flight.ticket.ended or flight.sent or flight.tries >= _TRIES or self.draining:
            self._end(flight, error)
        else:
            log.info("cluster.job_runs_again", request_id=flight.ticket.job.request_id)
            self._launch(flight)

    def _detach(self, flight: Flight) -> None:
        if flight.link is not None:
            flight.link.flights.pop(flight.number, None)
            self._end_if_idle(flight.link)
            flight.link = None

    def _end(self, flight: Flight, error: EngineError | None) -> None:
        """A flight is over: first its slot, so that whoever hears of the end finds it free."""
        self._detach(flight)
        self._flights.pop(flight.ticket, None)
        self._admission.release(flight.ticket)
        if error is not None:
            flight.ticket.fail(error)
        self._wake()

    def _abort_job(self, ticket: JobTicket) -> None:
        """The client has left: its replica is told as soon as it has the job."""
        task = asyncio.get_running_loop().create_task(self._cancel(self._flights[ticket]))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

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

    def _on_batch(self, link: Link, batch: Batch) -> None:
        for number, item in batch:
            if (flight := link.flights.get(number)) is not None:
                self._on_item(flight, item)

    def _on_item(self, flight: Flight, item: Item) -> None:
        match item:
            case Admitted():
                self._admission.opened(flight.ticket)
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
