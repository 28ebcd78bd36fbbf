"""Which sequences run in a step, and what becomes of their logits. No threads, no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import structlog

from maple.engine.api import EngineError, Finish, GenerationFailed, Job, Piece, Prefill, StopReason
from maple.engine.kv.cache import CacheHandle, Wait
from maple.engine.live_sessions import LiveSessions
from maple.engine.report import Delivery, StepReport
from maple.engine.runner import LoadedEngine, PrefillLimits, SequenceSlice
from maple.engine.sampling import Allowed, Sampler
from maple.engine.transcript import Transcript

__all__ = ["Scheduler"]

log = structlog.get_logger(__name__)

Key = TypeVar("Key", bound=Hashable)
Row = npt.NDArray[np.float32] | None


@attrs.define(kw_only=True, eq=False)
class _Sequence(Generic[Key]):
    key: Key
    job: Job
    cancelled: Callable[[], bool]
    sampler: Sampler
    transcript: Transcript
    queue_seconds: float
    started: float
    """When the sequence was taken, and once it is opened, when that was."""
    ids: list[int]
    cache: CacheHandle[Any] | None = None
    computed: int = 0  # ids whose keys and values are in the cache
    sampled: int = 0
    first_token: float | None = None

    @property
    def prefilling(self) -> bool:
        return self.sampled == 0

    def overdue(self, now: float) -> bool:
        return 0 < self.job.timeout <= now - self.started

    def next_slice(self, chunk: int) -> SequenceSlice:
        if self.cache is None:
            raise RuntimeError("a sequence that is not open was to run")
        end = min(len(self.ids), (self.computed // chunk + 1) * chunk)
        return SequenceSlice(
            cache=self.cache,
            ids=self.ids[self.computed : end],
            start=self.computed,
            want_logits=end == len(self.ids),
            cancelled=self.cancelled,
        )

    @property
    def computed_ids(self) -> list[int]:
        return self.ids[: self.computed]

    @property
    def progress(self) -> Prefill:
        return Prefill(
            request_id=self.job.request_id,
            done_tokens=self.computed,
            prompt_tokens=len(self.job.prompt_ids),
            cached_tokens=self.cache.reused if self.cache else 0,
        )

    def finish(self, reason: StopReason, now: float) -> Finish:
        first = now if self.first_token is None else self.first_token
        return Finish(
            reason=reason,
            prompt_tokens=len(self.job.prompt_ids),
            completion_tokens=self.sampled,
            cached_tokens=self.cache.reused if self.cache else 0,
            queue_seconds=self.queue_seconds,
            prefill_seconds=first - self.started,
            decode_seconds=now - first,
        )


class Scheduler(Generic[Key]):
    """Runs admitted sequences together, one step a call.

    A step opens sequences as far as memory goes, in the order in which they came, and runs the next id of every
    sequence that decodes, and prompts by ``limits`` (the runner's own unless given), the oldest first.
    An exception in it ends the sequences that were in it and no others. `cancelled` of a sequence is asked
    between steps, and by the runner within them.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        limits: PrefillLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = loaded.runner
        self._token_bytes = loaded.token_bytes
        self._allowed = Allowed.from_ids(loaded.token_ids)
        self._eos = frozenset(loaded.served.eos_token_ids)
        self._limits = limits or loaded.prefill
        self._clock = clock
        self._sequences: dict[Key, _Sequence[Key]] = {}
        self._failures = 0
        self._deliveries: list[Delivery[Key]] = []
        self._prompt_tokens = self._cached_tokens = self._generation_tokens = 0
        self._queries = self._hits = 0
        self.sessions = LiveSessions(loaded.runner, running=self._running_ids, release=self._release_session)

    @property
    def idle(self) -> bool:
        """Whether a step would have nothing to do."""
        return not self._sequences

    def add(self, key: Key, job: Job, *, cancelled: Callable[[], bool], queue_seconds: float = 0.0) -> None:
        """Take a sequence that has its slot; ``key`` names it in deliveries."""
        self._sequences[key] = _Sequence(
            key=key,
            job=job,
            cancelled=cancelled,
            sampler=Sampler(job.sampling, self._allowed, job.prompt_ids),
            transcript=Transcript(self._token_bytes, job.stop, job.stop_behind),
            queue_seconds=queue_seconds,
            started=self._clock(),
            ids=list(job.prompt_ids),
        )

    def step(self) -> StepReport[Key]:
        """Run one step. Never raises for what the model does."""
        self._sweep()
        self._open_waiting()
        self._run(self._plan())
        self._sweep()
        return self._report()

    def _sweep(self) -> None:
        """End what was cancelled and what has run out of time."""
        now = self._clock()
        for sequence in list(self._sequences.values()):
            if sequence.cancelled():
                self._end(sequence)
            elif sequence.cache is not None and sequence.overdue(now):
                self._close(sequence, "length")

    def _open_waiting(self) -> None:
        """Open what fits; none overtakes another that waits for memory."""
        for sequence in [one for one in self._sequences.values() if one.cache is None]:
            try:
                longest = len(sequence.job.prompt_ids) + sequence.job.max_tokens
                cache = self._runner.open(sequence.job.owner, sequence.job.prompt_ids, longest)
            except EngineError as error:
                self._end(sequence, error=error)
                continue
            except Exception:
                self._fail([sequence])
                continue
            if cache is Wait.MEMORY:
                return
            if isinstance(cache, CacheHandle):
                self._note_opened(sequence, cache)

    def _note_opened(self, sequence: _Sequence[Key], cache: CacheHandle[Any]) -> None:
        sequence.cache = cache
        sequence.computed = cache.reused
        now = self._clock()
        sequence.queue_seconds += now - sequence.started
        sequence.started = now
        self._queries += 1
        self._hits += cache.reused > 0

    def _plan(self) -> list[_Sequence[Key]]:
        planned = []
        budget = self._limits.budget
        chunk = self._limits.chunk
        for sequence in self._sequences.values():
            if sequence.cache is None:
                continue
            if sequence.prefilling:
                size = min(chunk - sequence.computed % chunk, len(sequence.ids) - sequence.computed)
                if size > budget and budget < self._limits.budget:
                    continue
                budget -= size
            planned.append(sequence)
        return planned

    def _run(self, planned: Sequence[_Sequence[Key]]) -> None:
        if not planned:
            return
        try:
            slices = [one.next_slice(self._limits.chunk) for one in planned]
            rows = self._runner.step(slices)
        except Exception:
            self._failures += 1
            self._fail(planned)
            return
        self._failures = 0
        for sequence, one, row in zip(planned, slices, rows, strict=True):
            sequence.computed += len(one.ids)
            try:
                self._advance(sequence, row)
            except Exception:  # logits that nothing can be sampled from, above all: the others are fine
                self._fail([sequence])

    def _advance(self, sequence: _Sequence[Key], row: Row) -> None:
        if row is None:
            return
        token_id = sequence.sampler.choose(row)
        if sequence.prefilling:
            self._note_prefilled(sequence)
        sequence.sampled += 1
        self._generation_tokens += 1
        if token_id in self._eos:
            self._close(sequence, "stop")
            return
        pieces = sequence.transcript.feed(token_id)
        if sequence.transcript.stopped:
            self._close(sequence, "stop", pieces)
        elif sequence.sampled >= sequence.job.max_tokens:
            self._close(sequence, "length", pieces)
        else:
            sequence.ids.append(token_id)
            if pieces:
                self._deliveries.append(Delivery(key=sequence.key, items=pieces))

    def _note_prefilled(self, sequence: _Sequence[Key]) -> None:
        sequence.first_token = self._clock()
        self._prompt_tokens += len(sequence.job.prompt_ids)
        self._cached_tokens += sequence.cache.reused if sequence.cache else 0

    def _close(self, sequence: _Sequence[Key], reason: StopReason, pieces: Sequence[Piece] = ()) -> None:
        items: list[Piece | Finish] = [*pieces, *sequence.transcript.close()]
        reason = "stop" if sequence.transcript.stopped else reason
        self._end(sequence, items=[*items, sequence.finish(reason, self._clock())])

    def _fail(self, sequences: Sequence[_Sequence[Key]]) -> None:
        requests = [sequence.job.request_id for sequence in sequences]
        log.exception("engine.step_failed", request_ids=requests, consecutive=self._failures)
        for sequence in sequences:
            self._end(sequence, error=GenerationFailed())

    def _end(
        self,
        sequence: _Sequence[Key],
        *,
        items: Sequence[Piece | Finish] = (),
        error: EngineError | None = None,
    ) -> None:
        del self._sequences[sequence.key]
        if sequence.cache is not None:
            self._runner.close(sequence.cache, keep=error is None)
            self.sessions.note(sequence.job, sequence.computed_ids)
        self._deliveries.append(Delivery(key=sequence.key, items=items, error=error, ended=True))

    def _running_ids(self, owner: str, session_id: str) -> list[int]:
        """The ids computed so far of the session's newest running sequence."""
        for one in reversed(self._sequences.values()):
            if (one.job.owner, one.job.session_id) == (owner, session_id) and one.computed:
                return one.computed_ids
        return []

    def _release_session(self, owner: str, session_id: str) -> bool:
        """Let the session's running sequences go on without it; whether there are any."""
        found = False
        for one in self._sequences.values():
            if (one.job.owner, one.job.session_id) == (owner, session_id):
                one.job = attrs.evolve(one.job, session_id=None)
                found = True
        return found

    def _report(self) -> StepReport[Key]:
        report = StepReport(
            deliveries=self._deliveries,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generation_tokens=self._generation_tokens,
            kv_bytes=self._runner.kv_bytes,
            kv_blocks=self._runner.kv_blocks,
            prefix_queries=self._queries,
            prefix_hits=self._hits,
            evictions=self._runner.evictions,
            sessions=self.sessions.count(),
            prefills=tuple(one.progress for one in self._sequences.values() if one.prefilling),
            broken=self._failures > 1,
        )
        self._deliveries = []
        self._prompt_tokens = self._cached_tokens = self._generation_tokens = 0
        self._queries = self._hits = 0
        return report
