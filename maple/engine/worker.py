"""The engine over a model: one thread owns the model, everything else stays on the event loop.

In goes one queue, from the loop to the thread; out comes one `call_soon_threadsafe` a step. Cancelling sends
nothing: the thread asks each ticket whether it has ended. This is the only file with threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, cast

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
from maple.engine.live_sessions import LiveSessions
from maple.engine.report import StepReport
from maple.engine.runner import LoadedEngine, Loader, PrefillLimits
from maple.engine.saved_sessions import SavedSessions
from maple.engine.scheduler import Scheduler
from maple.engine.session_files import SessionFiles, model_identity
from maple.engine.ticket import JobTicket

__all__ = ["ThreadedEngine"]

log = structlog.get_logger(__name__)

_LOAD_BROKE = "the model could not be loaded; the server's log says why"
_THREAD_BROKE = "the engine broke; the server's log says why"
_STEPS_BREAK = "the model failed in two steps in a row"
_CLOSED = "the engine is closed"

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


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
        self._sessions: SavedSessions | None = None
        self._reviving: set[asyncio.Task[None]] = set()
        self._thread = _EngineThread(loader, prefill, self)

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
        return await asyncio.to_thread(self._session_files.manifest, owner, session_id)

    async def delete_session(self, owner: str, session_id: str) -> None:
        """As the protocol says; no model is needed, since without one nothing is live."""
        if self._sessions is not None and self._error is None:
            await self._sessions.delete(owner, session_id)
        elif self._session_files is None or not await asyncio.to_thread(
            self._session_files.delete, owner, session_id
        ):
            raise SessionUnknown

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the engine's own protocol
        """As the protocol says."""
        return await self._admission.drain(timeout)

    async def close(self) -> None:
        """End every job with ShuttingDown, stop the thread within a layer's time, and wait for it."""
        self._admission.close()
        for task in self._reviving:
            task.cancel()
        if self._thread.close():
            await self._ended.wait()
            self._thread.join()

    def on_loaded(self, loaded: LoadedEngine, identity: str) -> None:
        """The thread has a model; its weights are called ``identity``."""
        self._served = loaded.served
        self._sessions = SavedSessions(
            self._thread.call, self._session_files, model=identity, kv_format=loaded.runner.kv_format
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


@attrs.frozen(eq=False)
class _Call:
    """A function for the thread, and where its answer is awaited."""

    function: Callable[[LiveSessions], Any]
    answer: asyncio.Future[Any]

    def settle(self, result: Any = None, error: Exception | None = None) -> None:
        """On the loop: hand over the result, unless nobody waits any more."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


class _EngineThread:
    """The thread that owns the model; `start`, `submit`, `close` and `join` are for the loop's side."""

    def __init__(self, loader: Loader, prefill: PrefillLimits | None, engine: ThreadedEngine) -> None:
        self._loader = loader
        self._prefill = prefill
        self._engine = engine
        self._inbox: queue.SimpleQueue[JobTicket | _Call | None] = queue.SimpleQueue()
        self._calls: set[_Call] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name="maple-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, ticket: JobTicket) -> None:
        self._inbox.put(ticket)

    async def call(self, function: Callable[[LiveSessions], T]) -> T:
        """Run a function on the thread between two steps; raises ShuttingDown where it has ended."""
        if self._closing.is_set():
            raise ShuttingDown
        call = _Call(function, asyncio.get_running_loop().create_future())
        self._calls.add(call)
        self._inbox.put(call)
        try:
            return cast("T", await call.answer)
        finally:
            self._calls.discard(call)

    def end_calls(self) -> None:
        """Answer those that the thread will not get to."""
        self._closing.set()
        for call in self._calls:
            call.settle(error=ShuttingDown())

    def close(self) -> bool:
        """Ask the thread to end; whether there is one to wait for."""
        self._closing.set()
        self._inbox.put(None)
        return self._loop is not None

    def join(self) -> None:
        self._thread.join()

    def _main(self) -> None:
        try:
            loaded = self._load()
            if loaded is not None:
                self._serve(Scheduler(loaded, self._prefill))
        except Exception:
            log.exception("engine.thread_failed")
            self._post(self._engine.on_failed, _THREAD_BROKE)
        finally:
            self._post(self._engine.on_ended)

    def _load(self) -> LoadedEngine | None:
        try:
            loaded = self._loader(self._closing.is_set)
        except ModelFailed as error:
            log.error("engine.load_failed", reason=error.reason)  # noqa: TRY400 - the reason says it all
            self._post(self._engine.on_failed, error.reason)
        except Exception:
            if not self._closing.is_set():
                log.exception("engine.load_failed")
                self._post(self._engine.on_failed, _LOAD_BROKE)
        else:
            identity = model_identity(loaded.served.folder)
            self._post(self._engine.on_loaded, loaded, identity)
            return loaded
        return None

    def _serve(self, scheduler: Scheduler[JobTicket]) -> None:
        working = True
        while working and not self._closing.is_set():
            self._receive(scheduler)
            if not scheduler.idle:
                working = self._step(scheduler)

    def _step(self, scheduler: Scheduler[JobTicket]) -> bool:
        """Run a step and report it, keeping nothing of it; whether there should be another."""
        report = scheduler.step()
        self._post(self._engine.on_step, report)
        return not report.broken

    def _receive(self, scheduler: Scheduler[JobTicket]) -> None:
        """Take what has arrived; with nothing to run, wait for something to arrive."""
        wait = scheduler.idle
        with contextlib.suppress(queue.Empty):
            while (ticket := self._inbox.get(block=wait)) is not None:
                if isinstance(ticket, _Call):
                    self._answer(ticket, scheduler)
                    continue
                wait = False
                scheduler.add(
                    ticket, ticket.job, cancelled=ticket.has_ended, queue_seconds=ticket.queue_seconds
                )

    def _answer(self, call: _Call, scheduler: Scheduler[JobTicket]) -> None:
        """Every call is answered, with whatever it raised."""
        try:
            result = call.function(scheduler.sessions)
        except Exception as error:
            self._post(call.settle, None, error)
        else:
            self._post(call.settle, result)

    def _post(self, function: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        if self._loop is None:
            raise RuntimeError("the thread was not started by start()")
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed without closing the engine: there is nobody left to tell
            self._closing.set()
