"""The thread that owns the model, as the event loop's side sees it.

In goes one queue, from the loop to the thread; out comes one ``call_soon_threadsafe`` a step. Cancelling sends
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

from maple.engine.errors import GenerationFailed, ModelFailed, ShuttingDown
from maple.engine.live_sessions import LiveSessions
from maple.engine.prefix_disk.disk import PrefixDisk
from maple.engine.report import StepReport
from maple.engine.runner import LoadedEngine, Loader, PrefillLimits
from maple.engine.scheduler import Scheduler
from maple.engine.session_files import model_identity
from maple.engine.step_clock import StepClock
from maple.engine.suspicion import Suspicion
from maple.engine.ticket import JobTicket

log = structlog.get_logger(__name__)

_LOAD_BROKE = "the model could not be loaded; the server's log says why"
_THREAD_BROKE = "the engine broke; the server's log says why"

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


@attrs.frozen(eq=False)
class Loaded:
    """The thread has a model; its weights are called ``identity``."""

    engine: LoadedEngine
    identity: str


@attrs.frozen
class Failed:
    """The thread has no model, or broke: ``reason`` in one line."""

    reason: str


@attrs.frozen
class Ended:
    """The thread is over. The last event."""


@attrs.frozen
class Reloading:
    """The weights were found rotten, and are loaded again."""


ThreadEvent = Loaded | Reloading | Failed | StepReport[JobTicket] | Ended
"""What the event loop hears of; after a broken step's report the thread does no other."""


@attrs.frozen(eq=False)
class _Call:
    """A function for the thread, and where its answer is awaited."""

    function: Callable[[LiveSessions], Any]
    answer: asyncio.Future[Any]

    def reply(self, result: Any = None, error: Exception | None = None) -> None:
        """On the loop: hand over the result, unless nobody waits any more."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)


class EngineThread:
    """Loads a model and steps it. Everything public is for the event loop's side.

    ``prefill`` overrides what the loaded runner asks for; ``tell`` is called on the loop with every event; ``disk``
    follows the runner's blocks.
    """

    def __init__(
        self,
        loader: Loader,
        prefill: PrefillLimits | None,
        tell: Callable[[ThreadEvent], None],
        disk: PrefixDisk | None = None,
    ) -> None:
        self._loader = loader
        self._disk = disk
        self._prefill = prefill
        self.steps = StepClock()
        self._tell = tell
        self._inbox: queue.SimpleQueue[JobTicket | _Call | None] = queue.SimpleQueue()
        self._calls: set[_Call] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._main, name="maple-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start on the running loop, which is the one that hears of everything."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, ticket: JobTicket) -> None:
        """Hand over a job that has its slot."""
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
            call.reply(error=ShuttingDown())

    def close(self) -> bool:
        """Ask the thread to end; whether there is one to wait for."""
        self._closing.set()
        self._inbox.put(None)
        return self._loop is not None

    def join(self) -> None:
        """Wait until the thread has ended; not for long, once ``Ended`` was told."""
        self._thread.join()

    def _main(self) -> None:
        try:
            while self._load_and_serve():
                self._post(self._tell, Reloading())
        except Exception:
            log.exception("engine.thread_failed")
            self._post(self._tell, Failed(_THREAD_BROKE))
        finally:
            self._post(self._tell, Ended())

    def _load_and_serve(self) -> bool:
        """Whether to do it again; by then the earlier weights are let go of."""
        loaded = self._load()
        return loaded is not None and self._serve(loaded)

    def _load(self) -> LoadedEngine | None:
        try:
            loaded = self._loader(self._closing.is_set)
        except ModelFailed as error:
            log.error("engine.load_failed", reason=error.reason)  # noqa: TRY400 - the reason says it all
            self._post(self._tell, Failed(error.reason))
        except Exception:
            if not self._closing.is_set():
                log.exception("engine.load_failed")
                self._post(self._tell, Failed(_LOAD_BROKE))
        else:
            identity = model_identity(loaded.served.folder)
            if self._disk is not None:
                self._disk.attach(loaded, identity, wake=lambda: self._inbox.put(None))
            self._post(self._tell, Loaded(loaded, identity))
            return loaded
        return None

    def _serve(self, loaded: LoadedEngine) -> bool:
        """Step until closed or broken, or until the weights are found rotten: whether to load them again."""
        scheduler: Scheduler[JobTicket] = Scheduler(loaded, self._prefill)
        suspicion = Suspicion(loaded.rotted, tell=lambda: self._inbox.put(None))
        working = True
        while working and not self._closing.is_set() and not suspicion.confirmed:
            if self._disk is not None:
                self._disk.feed()
            self._receive(scheduler)
            if not scheduler.idle:
                working = self._step(scheduler, suspicion)
        if self._disk is not None:
            self._disk.finish()
        if suspicion.confirmed:
            scheduler.end_all()
            self._post(self._tell, scheduler.report())
        return suspicion.confirmed and not self._closing.is_set()

    def _step(self, scheduler: Scheduler[JobTicket], suspicion: Suspicion) -> bool:
        """Run a step and report it, keeping nothing of it; whether there should be another.

        Who begins to run, or has to wait, is told before the step, which may take seconds.
        """
        if (opened := scheduler.open()) is not None:
            self._post(self._tell, opened)
        with self.steps.step():
            report = scheduler.step()
        if any(isinstance(each.error, GenerationFailed) for each in report.deliveries):
            suspicion.arise()
        self._post(self._tell, report)
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
                    ticket,
                    ticket.job,
                    cancelled=ticket.has_ended,
                    hurried=ticket.is_hurried,
                    queue_seconds=ticket.queue_seconds,
                )

    def _answer(self, call: _Call, scheduler: Scheduler[JobTicket]) -> None:
        """Every call is answered, with whatever it raised; what it changed is told before."""
        result, error = None, None
        try:
            result = call.function(scheduler.sessions)
        except Exception as raised:
            error = raised
        self._post(self._tell, scheduler.report())
        self._post(call.reply, result, error)

    def _post(self, function: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        if self._loop is None:
            raise RuntimeError("the thread was not started by start()")
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop was closed without closing the engine: there is nobody left to tell
            self._closing.set()
