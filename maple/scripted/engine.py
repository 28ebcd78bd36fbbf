"""An engine that plays recordings instead of running a model: same queue, stop strings, limits and errors."""

from __future__ import annotations

import asyncio
import json
import pathlib
import time
from collections.abc import Sequence

import attrs
import structlog

from maple.engine.admission import Admission, QueueLimits
from maple.engine.api import EngineStatus, Finish, Job, Piece, Served, StopReason, Ticket
from maple.engine.cores import most_slots
from maple.engine.errors import GenerationFailed, ModelLoading, SessionUnknown
from maple.engine.loading import LoadingGauge
from maple.engine.stats import EngineStats, JobStatus, SessionLoaded, SessionManifest
from maple.engine.step_clock import StepClock
from maple.engine.stops import StopMatcher
from maple.engine.ticket import JobTicket
from maple.scripted.earlier_prompts import EarlierPrompts
from maple.scripted.script import FinishWord, Recording

log = structlog.get_logger(__name__)

_BATCH = 8  # pieces handed over between two turns of the loop: few enough to be fair, enough to cost little


def scripted_served(folder: pathlib.Path, *, max_model_len: int = 131072) -> Served:
    """Describe a scripted engine whose prompts are rendered and counted with the tokenizer in ``folder``."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    ids = set(tokenizer["model"]["vocab"].values()) | {added["id"] for added in tokenizer["added_tokens"]}
    return Served(
        folder=folder,
        vocabulary=len(ids),
        max_model_len=max_model_len,
        eos_token_ids=(),
        generation_defaults={},
        device="scripted",
        dtype="none",
        attention="none",
        load_seconds=0.0,
    )


class ScriptedEngine:
    """The ``Engine`` that answers with the first recording that the job's conversation asks for.

    Usage counts one token a piece, and as cached what a prompt shares with an earlier one. It runs on the event
    loop's thread alone.
    """

    def __init__(self, recordings: Sequence[Recording], *, served: Served, limits: QueueLimits) -> None:
        self.steps = StepClock()
        """Never ticks: there are no steps."""
        self._recordings = tuple(recordings)
        self._served = served
        self._started = asyncio.Event()
        self.loading = LoadingGauge()
        limits = attrs.evolve(limits, slots=limits.slots or most_slots())
        self._admission = Admission(limits, start=self._start, abort=self._abort)
        self._tasks: dict[JobTicket, asyncio.Task[None]] = {}
        self._earlier = EarlierPrompts()
        self._prompt_tokens = 0
        self._generation_tokens = 0

    @property
    def status(self) -> EngineStatus:
        """Loading until started, then ok."""
        return "ok" if self._started.is_set() else "loading"

    @property
    def error(self) -> str | None:
        """Always None: a script was checked when it was read."""
        return None

    @property
    def served(self) -> Served | None:
        """What stands in for a checkpoint; None until started."""
        return self._served if self._started.is_set() else None

    @property
    def slots(self) -> int:
        """How many jobs run at a time."""
        return self._admission.slots

    @property
    def draining(self) -> bool:
        """Whether new jobs are refused."""
        return self._admission.draining

    def start(self) -> None:
        """There is nothing to load."""
        self._started.set()

    async def loaded(self) -> None:
        """Return once started."""
        await self._started.wait()

    def submit(self, job: Job) -> Ticket:
        """Queue a job; one that no recording answers fails without taking a slot."""
        if not self._started.is_set():
            raise ModelLoading
        if not self.draining and self._find(job) is None:
            return _unmatched(job)
        return self._admission.submit(job)

    def count_cancelled(self) -> None:
        """Count a client that left before its job with the cancelled ones."""
        self._admission.cancelled += 1

    def stats(self) -> EngineStats:
        """Counts as of now; a token is a piece."""
        return EngineStats(
            running=self._admission.running,
            waiting=self._admission.waiting,
            cancelled=self._admission.cancelled,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            queue=self._admission.queue(),
        )

    def jobs(self) -> tuple[JobStatus, ...]:
        """A token is a piece."""
        return self._admission.jobs()

    async def save_session(self, owner: str, session_id: str) -> SessionManifest:
        """Nothing is live."""
        raise SessionUnknown

    async def load_session(self, owner: str, session_id: str) -> SessionLoaded:
        """Nothing was saved."""
        raise SessionUnknown

    async def session_manifest(self, owner: str, session_id: str) -> SessionManifest:
        """Nothing was saved."""
        raise SessionUnknown

    async def delete_session(self, owner: str, session_id: str) -> None:
        """There is none."""
        raise SessionUnknown

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the engine's own protocol
        """Refuse new jobs, finish what runs or waits; after ``timeout`` seconds cancel the rest: False."""
        return await self._admission.drain(timeout)

    async def close(self) -> None:
        """End every job with ShuttingDown and wait for its task."""
        self._admission.close()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _find(self, job: Job) -> Recording | None:
        return next((r for r in self._recordings if r.answers(job)), None)

    def _start(self, ticket: JobTicket) -> None:
        recording = self._find(ticket.job)
        if recording is None:
            raise RuntimeError("a job without a recording was queued")
        # before the job is known to have begun: its stream's first event tells this count
        ticket.cached_tokens = self._earlier.shared(ticket.job.owner, ticket.job.prompt_ids)
        task = asyncio.get_running_loop().create_task(self._play(ticket, recording))
        self._tasks[ticket] = task
        self._admission.opened(ticket)
        task.add_done_callback(lambda task: self._ended(ticket, task))

    def _abort(self, ticket: JobTicket) -> None:
        self._tasks[ticket].cancel()

    def _ended(self, ticket: JobTicket, task: asyncio.Task[None]) -> None:
        del self._tasks[ticket]
        self._admission.release(ticket)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("engine.step_failed", request_id=ticket.job.request_id, exc_info=error)
            ticket.fail(GenerationFailed())

    async def _play(self, ticket: JobTicket, recording: Recording) -> None:
        performance = Performance(recording=recording, job=ticket.job, cached=ticket.cached_tokens)
        self._prompt_tokens += len(ticket.job.prompt_ids)
        pieces = [Piece(ticket.job.subject)] if ticket.job.echo else []
        while performance.outcome is None:
            ticket.deliver(pieces)
            await _pause(recording, performance)
            if ticket.hurried:
                performance.hurry()
            pieces, count = performance.take()
            self._generation_tokens += count
        self._admission.release(ticket)  # first, so that whoever hears of the end finds the slot free
        ticket.deliver(pieces)
        if performance.outcome == "error":
            log.error("engine.scripted_failure", request_id=ticket.job.request_id)
            ticket.fail(GenerationFailed())
        else:
            ticket.deliver([performance.finish(ticket, performance.outcome)])


@attrs.define(kw_only=True)
class Performance:
    """A recording on its way to one job: limits and stop strings applied, tokens counted."""

    recording: Recording
    job: Job
    cached: int
    outcome: FinishWord | None = None
    _tokens: int = 0
    _started: float = attrs.field(factory=time.monotonic)
    _stops: StopMatcher = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._stops = StopMatcher(self.job.stop, self.job.stop_behind)

    @property
    def remaining(self) -> float | None:
        """Seconds until the job's timeout; None without one."""
        return self.job.timeout - (time.monotonic() - self._started) if self.job.timeout else None

    def take(self) -> tuple[list[Piece], int]:
        """The next few pieces, and how many tokens they cost; sets ``outcome`` with the last of them."""
        if self.remaining is not None and self.remaining <= 0:
            return self._close("length"), 0
        size = 1 if self.recording.delay_ms else _BATCH
        limit = min(len(self.recording.stream), self.job.max_tokens)
        before = self._tokens
        raw = self.recording.stream[before : min(before + size, limit)]
        pieces = self._cut(raw) if self.job.stop else list(raw)
        self._tokens += len(pieces)
        if self._stops.matched:
            self.outcome = "stop"
        elif self._tokens == limit:
            pieces += self._close(self.recording.finish if limit == len(self.recording.stream) else "length")
        return pieces, self._tokens - before

    def hurry(self) -> None:
        """Pass over what is left of the reasoning, if the recording is in it."""
        left = self.recording.stream[self._tokens :]
        closer = "" if self.job.thinking is None else self.job.thinking.closer
        if closer and closer in "".join(piece.text for piece in left):
            while closer in "".join(piece.text for piece in left[1:]):
                left = left[1:]
            self._tokens = len(self.recording.stream) - len(left)

    def finish(self, ticket: JobTicket, reason: StopReason) -> Finish:
        """The Finish that goes with the outcome."""
        return Finish(
            reason=reason,
            prompt_tokens=len(self.job.prompt_ids),
            completion_tokens=self._tokens,
            cached_tokens=self.cached,
            stop=self._stops.word if self._stops.matched else None,
            queue_seconds=ticket.queue_seconds,
            decode_seconds=time.monotonic() - self._started,
        )

    def _cut(self, raw: Sequence[Piece]) -> list[Piece]:
        pieces = []
        for piece in raw:
            pieces.append(Piece(self._stops.feed(piece.text), piece.offsets))
            if self._stops.matched:
                break
        return pieces

    def _close(self, outcome: FinishWord) -> list[Piece]:
        tail = self._stops.close()
        self.outcome = "stop" if self._stops.matched else outcome
        return [Piece(tail)] if tail else []


async def _pause(recording: Recording, performance: Performance) -> None:
    delay = recording.delay_ms / 1000
    remaining = performance.remaining
    await asyncio.sleep(delay if remaining is None else max(0.0, min(delay, remaining)))


def _unmatched(job: Job) -> JobTicket:
    """Nothing in the script answers this: fails before it takes a slot, so that the refusal is a true 500."""
    log.error("engine.scripted_no_match", request_id=job.request_id)
    ticket = JobTicket(job, lambda _: None)
    ticket.fail(GenerationFailed())
    return ticket
