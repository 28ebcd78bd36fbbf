"""The engine over a model: one thread owns the model, everything else, and all of this, is the event loop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import attrs
import structlog

from maple.engine.admission import Admission, QueueLimits
from maple.engine.api import EngineStatus, Job, Served, Ticket
from maple.engine.errors import ModelFailed, ModelLoading
from maple.engine.loading import LoadingGauge
from maple.engine.prefix_disk.disk import PrefixDisk
from maple.engine.report import Delivery, StepReport
from maple.engine.runner import Loader, PrefillLimits
from maple.engine.saved_sessions import SavedSessions
from maple.engine.session_files import SessionFiles
from maple.engine.stats import EngineStats, JobStatus, SessionLoaded, SessionManifest
from maple.engine.step_clock import StepClock
from maple.engine.thread import Ended, EngineThread, Failed, Loaded, Reloading, ThreadEvent
from maple.engine.ticket import JobTicket

log = structlog.get_logger(__name__)
T = TypeVar("T")

_STEPS_BREAK = "the model failed in two steps in a row"
_CLOSED = "the engine is closed"


class ThreadedEngine:
    """The ``Engine`` that runs a model. Its methods belong to the event loop that ``start`` was called on.

    ``prefill`` overrides what the loaded runner asks for; sessions are saved to ``session_files``, if any,
    and prefixes kept on ``prefix_disk``; ``gauge`` is what the loader reports to.
    """

    def __init__(
        self,
        loader: Loader,
        *,
        limits: QueueLimits,
        prefill: PrefillLimits | None = None,
        session_files: SessionFiles | None = None,
        prefix_disk: PrefixDisk | None = None,
        gauge: LoadingGauge | None = None,
    ) -> None:
        self.loading = gauge or LoadingGauge()
        self._limits = limits
        self._status: EngineStatus = "loading"
        self._error: str | None = None
        self._served: Served | None = None
        self._load_ended = asyncio.Event()
        self._ended = asyncio.Event()
        self._admission = Admission(limits, start=self._start_job)
        self._stats = EngineStats()  # without what only the admission knows
        self._disk = prefix_disk
        self._thread = EngineThread(loader, prefill, self._on_event, prefix_disk)
        self._sessions = SavedSessions(self._thread.call, session_files)
        self._reviving: set[asyncio.Task[None]] = set()

    @property
    def status(self) -> EngineStatus:
        """Loading, then ok, or error once there is no model to run."""
        return self._status

    @property
    def error(self) -> str | None:
        """One line once the status is error."""
        return self._error

    @property
    def served(self) -> Served | None:
        """The loaded checkpoint; None before."""
        return self._served

    @property
    def steps(self) -> StepClock:
        """What the thread's steps have taken, for metrics and the watchdog; read from any thread."""
        return self._thread.steps

    @property
    def slots(self) -> int:
        """How many jobs run at a time."""
        return self._admission.slots

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused."""
        return self._admission.draining

    def start(self) -> None:
        """Start the thread, which loads the model."""
        self._thread.start()

    async def loaded(self) -> None:
        """Return when the load has ended, well or not."""
        await self._load_ended.wait()

    def submit(self, job: Job) -> Ticket:
        """Start or queue a job, or raise why not."""
        self._require_model()
        return self._admission.submit(job)

    def count_cancelled(self) -> None:
        """Count a client that left before its job could be submitted."""
        self._admission.cancelled += 1

    def stats(self) -> EngineStats:
        """Counts as of the last step or change of sessions; who waits, as of now."""
        return attrs.evolve(
            self._stats,
            running=self._admission.running,
            waiting=self._admission.waiting,
            cancelled=self._admission.cancelled,
            queue=self._admission.queue(),
            **({} if self._disk is None else attrs.asdict(self._disk.figures)),
        )

    def jobs(self) -> tuple[JobStatus, ...]:
        """As of the last step."""
        return self._admission.jobs()

    async def save_session(self, owner: str, session_id: str) -> SessionManifest:
        """Raises what its kind says, or why there is no model."""
        self._require_model()
        return await self._sessions.save(owner, session_id)

    async def load_session(self, owner: str, session_id: str) -> SessionLoaded:
        """Raises what its kind says, or why there is no model."""
        self._require_model()
        return await self._sessions.load(owner, session_id)

    async def session_manifest(self, owner: str, session_id: str) -> SessionManifest:
        """No model is needed."""
        return await self._sessions.manifest(owner, session_id)

    async def delete_session(self, owner: str, session_id: str) -> None:
        """No model is needed: without one nothing is live."""
        if self._disk is not None:
            await self._disk.forget_session(self._on_thread, owner, session_id)
        await self._sessions.delete(owner, session_id)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the engine's own protocol
        """Refuse new jobs and wait for the others; False: some had to be ended."""
        if self._disk is not None:
            self._disk.drain(timeout)
        return await self._admission.drain(timeout)

    async def close(self) -> None:
        """End every job with ShuttingDown, stop the thread within a layer's time, and wait for it, but for no file."""
        self._admission.close()
        self._sessions.close()
        if self._disk is not None:
            self._disk.close()
        for task in self._reviving:
            task.cancel()
        if self._thread.close():
            await self._ended.wait()
            self._thread.join()

    def _require_model(self) -> None:
        self._admission.refuse_if_draining()
        if self._error is not None:
            raise ModelFailed(self._error)
        if self._status == "loading":
            raise ModelLoading

    def _start_job(self, ticket: JobTicket) -> None:
        if not self._sessions.may_be_saved(ticket.job) and (self._disk is None or not self._disk.reads):
            self._thread.submit(ticket)
            return
        task = asyncio.get_running_loop().create_task(self._revive(ticket))
        self._reviving.add(task)
        task.add_done_callback(lambda done: self._on_revived(ticket, done))

    async def _revive(self, ticket: JobTicket) -> None:
        """Have in memory what there is of the job's session and prompt."""
        if self._sessions.may_be_saved(ticket.job):
            await self._sessions.revive(ticket.job)
        if self._disk is not None and self._disk.reads:
            await self._disk.fetch(self._on_thread, ticket.job, left=lambda: ticket.ended)

    async def _on_thread(self, function: Callable[[], T]) -> T:
        return await self._thread.call(lambda _: function())

    def _on_revived(self, ticket: JobTicket, task: asyncio.Task[None]) -> None:
        """The job goes on, whatever has become of its session."""
        self._reviving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("session.not_revived", request_id=ticket.job.request_id, exc_info=error)
        self._thread.submit(ticket)

    def _on_event(self, event: ThreadEvent) -> None:
        match event:
            case StepReport():
                self._on_step(event)
            case Loaded():
                self._served = event.engine.served
                if self._limits.slots is None:
                    self._admission.slots = event.engine.slots
                log.info("engine.slots", slots=self._admission.slots)
                self._sessions.serve(event.identity, event.engine.runner.kv_format)
                self._status = "ok"
                self._load_ended.set()
            case Reloading():
                self._status = "loading"
                self._load_ended.clear()
            case Failed():
                self._fail(event.reason)
            case Ended():
                self._on_ended()

    def _on_step(self, report: StepReport[JobTicket]) -> None:
        self._stats = report.added_to(self._stats)
        for ticket, reused in report.opened.items():
            ticket.cached_tokens = reused
            self._admission.opened(ticket)
        for ticket, prefill in report.prefills.items():
            ticket.processed_tokens = prefill.done_tokens
        for ticket in report.parked:
            self._admission.park(ticket)
        for delivery in report.deliveries:
            self._deliver(delivery)
        if report.broken:
            self._fail(_STEPS_BREAK)

    def _deliver(self, delivery: Delivery[JobTicket]) -> None:
        ticket = delivery.key
        try:
            if delivery.ended:  # first, so that whoever hears of the end finds the slot free
                self._admission.release(ticket)
        finally:
            ticket.deliver(delivery.items)
            if delivery.error is not None:
                ticket.fail(delivery.error)

    def _fail(self, reason: str) -> None:
        """There is no model any more; no job can be done."""
        self._status = "error"
        self._error = reason
        self._admission.evict(lambda: ModelFailed(reason))
        self._load_ended.set()

    def _on_ended(self) -> None:
        """The thread is over, and with it every slot's sequence."""
        if self._error is None:
            self._fail(_CLOSED)
        self._stats = attrs.evolve(self._stats, kv_bytes=0, kv_blocks=0, sessions=0, prefills=())
        self._thread.end_calls()
        self._admission.release_all()
        self._ended.set()
