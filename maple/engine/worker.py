"""The engine over a model: one thread owns the model, everything else, and all of this, is the event loop's."""

from __future__ import annotations

import asyncio
from functools import partial

import attrs
import structlog

from maple.engine.admission import Admission, QueueLimits
from maple.engine.api import (
    EngineStats,
    EngineStatus,
    Job,
    ModelFailed,
    ModelLoading,
    Served,
    SessionLoaded,
    SessionManifest,
    SessionUnknown,
    ShuttingDown,
    Ticket,
)
from maple.engine.file_threads import FileThreads
from maple.engine.report import StepReport
from maple.engine.runner import LoadedEngine, Loader, PrefillLimits
from maple.engine.saved_sessions import SavedSessions
from maple.engine.session_files import SessionFiles
from maple.engine.step_clock import StepClock
from maple.engine.thread import EngineThread
from maple.engine.ticket import JobTicket

__all__ = ["ThreadedEngine"]

log = structlog.get_logger(__name__)

_STEPS_BREAK = "the model failed in two steps in a row"
_CLOSED = "the engine is closed"


class ThreadedEngine:
    """The `Engine` that runs a model. Its methods belong to the event loop that `start` was called on.

    ``prefill`` overrides what the loaded runner asks for; sessions are saved to ``session_files``, if any.
    """

    def __init__(
        self,
        loader: Loader,
        *,
        limits: QueueLimits,
        prefill: PrefillLimits | None = None,
        session_files: SessionFiles | None = None,
    ) -> None:
        self._status: EngineStatus = "loading"
        self._error: str | None = None
        self._served: Served | None = None
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._admission = Admission(limits, start=self._start_job, abort=self._abort_job)
        self._stats = EngineStats()  # without what only the admission knows
        self._session_files = session_files
        self._file_threads = FileThreads()
        self._sessions: SavedSessions | None = None
        self._reviving: set[asyncio.Task[None]] = set()
        self._thread = EngineThread(loader, prefill, self)

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
        """As the protocol says."""
        return self._thread.steps

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused."""
        return self._admission.draining

    def start(self) -> None:
        """Start the thread, which loads the model."""
        self._thread.start()

    async def loaded(self) -> None:
        """Return when the load has ended, well or not."""
        await self._settled.wait()

    def submit(self, job: Job) -> Ticket:
        """Start or queue a job, or raise why not. ValueError: there is no prompt."""
        if self.draining:
            raise ShuttingDown
        if self._status == "loading":
            raise ModelLoading
        if self._error is not None:
            raise ModelFailed(self._error)
        if not job.prompt_ids:
            raise ValueError("a job needs a prompt of at least one id")
        return self._admission.submit(job)

    def count_cancelled(self) -> None:
        """As the protocol says."""
        self._admission.cancelled += 1

    def stats(self) -> EngineStats:
        """Counts as of the last step."""
        return attrs.evolve(
            self._stats,
            running=self._admission.running,
            waiting=self._admission.waiting,
            cancelled=self._admission.cancelled,
            queue=self._admission.queue(),
        )

    async def save_session(self, owner: str, session_id: str) -> SessionManifest:
        """As the protocol says."""
        return await self._ready_sessions().save(owner, session_id)

    async def load_session(self, owner: str, session_id: str) -> SessionLoaded:
        """As the protocol says."""
        return await self._ready_sessions().load(owner, session_id)

    async def session_manifest(self, owner: str, session_id: str) -> SessionManifest:
        """As the protocol says; no model is needed."""
        if self._session_files is None:
            raise SessionUnknown
        return await self._file_threads.run(partial(self._session_files.manifest, owner, session_id))

    async def delete_session(self, owner: str, session_id: str) -> None:
        """As the protocol says; no model is needed, since without one nothing is live."""
        if self._sessions is not None and self._error is None:
            await self._sessions.delete(owner, session_id)
        elif self._session_files is None or not await self._file_threads.run(
            partial(self._session_files.delete, owner, session_id)
        ):
            raise SessionUnknown

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the engine's own protocol
        """As the protocol says."""
        return await self._admission.drain(timeout)

    async def close(self) -> None:
        """End every job with ShuttingDown, stop the thread within a layer's time, and wait for it."""
        self._admission.close()
        self._file_threads.close()
        for task in self._reviving:
            task.cancel()
        if self._thread.close():
            await self._ended.wait()
            self._thread.join()

    def on_loaded(self, loaded: LoadedEngine, identity: str) -> None:
        """The thread has a model; its weights are called ``identity``."""
        self._served = loaded.served
        self._sessions = SavedSessions(
            self._thread.call,
            self._session_files,
            self._file_threads,
            model=identity,
            kv_format=loaded.runner.kv_format,
        )
        self._status = "ok"
        self._settled.set()

    def on_failed(self, reason: str) -> None:
        """The thread has no model, or one that fails; no job can be done any more."""
        self._status = "error"
        self._error = reason
        self._admission.evict(lambda: ModelFailed(reason))
        self._settled.set()

    def on_step(self, report: StepReport[JobTicket]) -> None:
        """The thread has done a step."""
        self._stats = report.added_to(self._stats)
        for delivery in report.deliveries:
            ticket = delivery.key
            if delivery.ended:  # first, so that whoever hears of the end finds the slot free
                self._admission.release(ticket)
            ticket.deliver(delivery.items)
            if delivery.error is not None:
                ticket.fail(delivery.error)
        if report.broken:
            self.on_failed(_STEPS_BREAK)

    def on_ended(self) -> None:
        """The thread is over, and with it every slot's sequence."""
        if self._error is None:
            self.on_failed(_CLOSED)
        self._stats = attrs.evolve(self._stats, kv_bytes=0, kv_blocks=0, sessions=0, prefills=())
        self._thread.end_calls()
        self._admission.release_all()
        self._ended.set()

    def _start_job(self, ticket: JobTicket) -> None:
        if self._sessions is None or not self._sessions.is_saved(ticket.job):
            self._thread.submit(ticket)
            return
        task = asyncio.get_running_loop().create_task(self._sessions.revive(ticket.job))
        self._reviving.add(task)
        task.add_done_callback(lambda done: self._revived(ticket, done))

    def _revived(self, ticket: JobTicket, task: asyncio.Task[None]) -> None:
        """The job goes on, whatever has become of its session."""
        self._reviving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("session.not_revived", request_id=ticket.job.request_id, exc_info=error)
        self._thread.submit(ticket)

    def _ready_sessions(self) -> SavedSessions:
        if self.draining:
            raise ShuttingDown
        if self._error is not None:
            raise ModelFailed(self._error)
        if self._sessions is None:
            raise ModelLoading
        return self._sessions

    def _abort_job(self, ticket: JobTicket) -> None:
        """The thread sees for itself that the ticket has ended."""
