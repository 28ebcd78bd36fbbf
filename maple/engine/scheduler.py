"""Which sequences run in a step, and what becomes of their logits. No threads, no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import structlog

from maple.engine.api import EngineError, Finish, GenerationFailed, Job, Piece, StopReason
from maple.engine.cache import CacheHandle
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

    def next_slice(self, cache: CacheHandle[Any], chunk: int) -> SequenceSlice:
        end = min(len(self.ids), (self.computed // chunk + 1) * chunk)
        return SequenceSlice(
            cache=cache,
            ids=self.ids[self.computed : end],
            start=self.computed,
            want_logits=end == len(self.ids),
            cancelled=self.cancelled,
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

    A step runs the next id of every sequence that decodes, and prompts by ``limits`` (the runner's own unless
    given), the oldest first.
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
            transcript=Transcript(self._token_bytes, job.stop),
            queue_seconds=queue_seconds,
            started=self._clock(),
            ids=list(job.prompt_ids),
        )

    def step(self) -> StepReport[Key]:
        """Run one step. Never raises for what the model does."""
        self._sweep()
        self._run(self._plan())
        self._sweep()
        return self._report()

    def _sweep(self) -> None:
        """End what was cancelled and what has run out of time."""
        now = self._clock()
        for sequence in list(self._sequences.values()):
            if sequence.cancelled():
                self._end(sequence)
            elif sequence.overdue(now):
                self._close(sequence, "length")

    def _plan(self) -> list[_Sequence[Key]]:
        planned = []
        budget = self._limits.budget
        chunk = self._limits.chunk
        for sequence in self._sequences.values():
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
            slices = [one.next_slice(self._opened(one), self._limits.chunk) for one in planned]
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

    def _opened(self, sequence: _Sequence[Key]) -> CacheHandle[Any]:
        if sequence.cache is None:
            sequence.cache = self._runner.open(sequence.job.owner, sequence.job.prompt_ids)
            sequence.computed = sequence.cache.reused
        return sequence.cache

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
            self._runner.close(sequence.cache)
        self._deliveries.append(Delivery(key=sequence.key, items=items, error=error, ended=True))

    def _report(self) -> StepReport[Key]:
        report = StepReport(
            deliveries=self._deliveries,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generation_tokens=self._generation_tokens,
            kv_bytes=self._runner.kv_bytes,
            broken=self._failures > 1,
        )
        self._deliveries = []
        self._prompt_tokens = self._cached_tokens = self._generation_tokens = 0
        return report
