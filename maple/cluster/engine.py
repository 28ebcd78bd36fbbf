"""The ``Engine`` whose model runs elsewhere: one front's admission, and its links to the replicas of a fleet.

Order, depth, timeout and positions are this front's admission; a replica's own queue holds no more than its slots.
Everything is on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid

import attrs
import structlog

from maple.cluster.flights import Flights
from maple.cluster.link import Link
from maple.cluster.messages import Fleet, FleetFailed
from maple.cluster.totals import Totals
from maple.engine.admission import QueueLimits
from maple.engine.api import EngineStatus, Job, Served, Ticket
from maple.engine.errors import (
    ModelFailed,
    ModelLoading,
)
from maple.engine.loading import LoadingGauge
from maple.engine.stats import EngineStats, JobStatus, SessionLoaded, SessionManifest
from maple.engine.step_clock import StepClock

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
        self._totals = Totals()
        self._flights = Flights(fleet, self._name, limits, self._open_links)
        self._admission = self._flights.admission
        self._sessions = self._flights.sessions
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
        await asyncio.gather(*(link.closed() for link in links))
        await self._flights.settle()
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
                self._flights.end_if_idle(link)
        for name in names - self._links.keys():
            self._links[name] = Link(
                name,
                self._name,
                self._fleet,
                on_ready=self._on_ready,
                on_batch=self._flights.take,
                on_lost=self._on_lost,
            )
        self._flights.resize()

    def _on_ready(self, link: Link) -> None:
        if link.greeting is not None and self._served is None:
            self._served = link.greeting.served
        log.info("cluster.replica_ready", replica=link.name)
        self._settled.set()
        self._flights.resize()

    def _on_lost(self, link: Link) -> None:
        self._totals.keep(link.stats)
        self._links.pop(link.name, None)
        self._sessions.forget(link.name)
        self._flights.lost(link)
