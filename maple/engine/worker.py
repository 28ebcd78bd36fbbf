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
from typing import TypeVarTuple

import structlog

from maple.engine.admission import Admission, QueueLimits
from maple.engine.api import (
    EngineStats,
    EngineStatus,
    Job,
    ModelFailed,
    ModelLoading,
    Served,
    ShuttingDown,
    Ticket,
)
from maple.engine.report import StepReport, Totals
from maple.engine.runner import LoadedEngine, Loader, PrefillLimits
from maple.engine.scheduler import Scheduler
from maple.engine.ticket import JobTicket

__all__ = ["ThreadedEngine"]

log = structlog.get_logger(__name__)

_LOAD_BROKE = "the model could not be loaded; the server's log says why"
_THREAD_BROKE = "the engine broke; the server's log says why"
_STEPS_BREAK = "the model failed in two steps in a row"
_CLOSED = "the engine is closed"

Arguments = TypeVarTuple("Arguments")


class ThreadedEngine:
    """The `Engine` that runs a model. Its methods belong to the event loop that `start` was called on.

    ``prefill`` overrides what the loaded runner asks for.
    """

    def __init__(self, loader: Loader, *, limits: QueueLimits, prefill: PrefillLimits | None = None) -> None:
        self._status: EngineStatus = "loading"
        self._error: str | None = None
        self._served: Served | None = None
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._admission = Admission(limits, start=self._start_job, abort=self._abort_job)
        self._totals = Totals()
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

    def stats(self) -> EngineStats:
        """Counts as of the last step."""
        return EngineStats(
            running=self._admission.running,
            waiting=self._admission.waiting,
            cancelled=self._admission.cancelled,
            prompt_tokens=self._totals.prompt_tokens,
            cached_tokens=self._totals.cached_tokens,
            generation_tokens=self._totals.generation_tokens,
            kv_bytes=self._totals.kv_bytes,
        )

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the engine's own protocol
        """As the protocol says."""
        return await self._admission.drain(timeout)

    async def close(self) -> None:
        """End every job with ShuttingDown, stop the thread within a layer's time, and wait for it."""
        self._admission.close()
        if self._thread.close():
            await self._ended.wait()
            self._thread.join()

    def on_loaded(self, served: Served) -> None:
        """The thread has a model."""
        self._served = served
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
        self._totals.add(report)
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
        self._totals.kv_bytes = 0
        self._admission.release_all()
        self._ended.set()

    def _start_job(self, ticket: JobTicket) -> None:
        self._thread.submit(ticket)

    def _abort_job(self, ticket: JobTicket) -> None:
        """The thread sees for itself that the ticket has ended."""


class _EngineThread:
    """The thread that owns the model; `start`, `submit`, `close` and `join` are for the loop's side."""

    def __init__(self, loader: Loader, prefill: PrefillLimits | None, engine: ThreadedEngine) -> None:
        self._loader = loader
        self._prefill = prefill
        self._engine = engine
        self._inbox: queue.SimpleQueue[JobTicket | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name="maple-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, ticket: JobTicket) -> None:
        self._inbox.put(ticket)

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
            self._post(self._engine.on_loaded, loaded.served)
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
                wait = False
                scheduler.add(
                    ticket, ticket.job, cancelled=ticket.has_ended, queue_seconds=ticket.queue_seconds
                )

    def _post(self, function: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        if self._loop is None:
            raise RuntimeError("the thread was not started by start()")
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed without closing the engine: there is nobody left to tell
            self._closing.set()
