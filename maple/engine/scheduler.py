"""Which sequences run in a step, and what becomes of their logits. No threads, no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import structlog

from maple.engine.api import Finish, Job, Piece, StopReason
from maple.engine.constraint import OutOfGrammar
from maple.engine.errors import EngineError, GenerationFailed
from maple.engine.kv.cache import CacheHandle
from maple.engine.live_sessions import LiveSessions
from maple.engine.new_sequence import NewSequences
from maple.engine.openings import Openings
from maple.engine.prefill import PrefillShares
from maple.engine.report import Delivery, StepReport
from maple.engine.runner import LoadedEngine, PrefillLimits
from maple.engine.sampling import SampleRow
from maple.engine.sequence import RunningSequence

log = structlog.get_logger(__name__)

Key = TypeVar("Key", bound=Hashable)
Row = npt.NDArray[np.float32]


class Scheduler(Generic[Key]):
    """Runs admitted sequences together, one step a call.

    A step opens sequences as far as memory goes, and runs the next id of every sequence that decodes, and prompts
    by ``limits`` (the runner's own unless given). Where memory runs out, the youngest is put back and computed again
    later. An exception ends the sequences that were in the step and no others. ``cancelled`` of a sequence is asked
    between steps, and by the runner within them.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        limits: PrefillLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = loaded.runner
        self._new = NewSequences(loaded, clock)
        self._choose = loaded.choose
        self._eos = frozenset(loaded.served.eos_token_ids)
        self._shares = PrefillShares(limits or loaded.prefill)
        self._clock = clock
        self._sequences: dict[Key, RunningSequence[Key]] = {}
        self._openings: Openings[Key] = Openings(
            loaded.runner, opened=self._on_opened, failed=self._on_not_opened
        )
        self._failures = 0
        self._next: StepReport[Key] = StepReport()
        self.sessions = LiveSessions(loaded.runner, running=self._running_ids, release=self._release_session)

    @property
    def idle(self) -> bool:
        """Whether a step would have nothing to do."""
        return not self._sequences

    def add(
        self,
        key: Key,
        job: Job,
        *,
        cancelled: Callable[[], bool],
        hurried: Callable[[], bool] = lambda: False,
        queue_seconds: float = 0.0,
    ) -> None:
        """Take a sequence that has its slot; ``key`` names it in deliveries."""
        self._sequences[key] = self._new.make(key, job, cancelled, hurried, queue_seconds)
        self._openings.add(self._sequences[key])

    def open(self) -> StepReport[Key] | None:
        """Open what can be opened before the next step; None where that changes nothing."""
        self._sweep()
        self._next.parked.extend(one.key for one in self._openings.try_all())
        changed = self._next.opened or self._next.parked or self._next.deliveries
        return self.report() if changed else None

    def step(self) -> StepReport[Key]:
        """Run one step. Never raises for what the model does."""
        self._sweep()
        self._next.parked.extend(one.key for one in self._openings.try_all())
        self._run(self._reserved(self._plan()))
        self._sweep()
        return self.report()

    def end_all(self) -> None:
        """Nothing that was computed is to be trusted: every sequence fails."""
        for sequence in list(self._sequences.values()):
            self._end(sequence, error=GenerationFailed())

    def report(self) -> StepReport[Key]:
        """What has happened since the last report, and how things are."""
        report, self._next = self._next, StepReport()
        report.kv_bytes, report.kv_blocks = self._runner.kv_bytes, self._runner.kv_blocks
        report.evictions, report.sessions = self._runner.evictions, self._runner.sessions
        report.prefills = {one.key: one.progress for one in self._sequences.values() if one.sampled == 0}
        report.broken = self._failures > 1
        return report

    def _sweep(self) -> None:
        """End what was cancelled and what has run out of time."""
        now = self._clock()
        for sequence in list(self._sequences.values()):
            if sequence.cancelled():
                self._end(sequence)
            elif sequence.overdue(now):
                self._close(sequence, "length")

    def _on_opened(self, sequence: RunningSequence[Key], cache: CacheHandle[Any]) -> None:
        if not sequence.opened:
            self._next.opened[sequence.key] = cache.reused
            self._next.prefix_queries += 1
            self._next.prefix_hits += cache.reused > 0
        sequence.open(cache, self._clock())

    def _on_not_opened(self, sequence: RunningSequence[Key], error: EngineError | None) -> None:
        if error is None:
            self._fail([sequence])
        else:
            self._end(sequence, error=error)

    def _plan(self) -> list[tuple[RunningSequence[Key], int]]:
        """Who runs in the next step, and how many ids."""
        is_open = [one for one in self._sequences.values() if one.cache is not None]
        prefilling = [one for one in is_open if one.prefilling]
        sizes = self._shares.of([one.prompt for one in prefilling])
        shares = dict(zip((one.key for one in prefilling), sizes, strict=True))
        scored = [one for one in is_open if one.scores_prompt][1:]  # rows of a vocabulary each: one at a time
        shares.update((one.key, 0) for one in scored)
        return [(one, one.share(size)) for one in is_open if (size := shares.get(one.key, 1))]

    def _reserved(
        self, plan: Sequence[tuple[RunningSequence[Key], int]]
    ) -> list[tuple[RunningSequence[Key], int]]:
        """The plan as far as memory goes: the first that came get it, if need be from the last."""
        by_age = sorted(plan, key=lambda planned: planned[0].number)
        for sequence, size in by_age:
            while sequence.cache is not None and not self._runner.reserve(
                sequence.cache, sequence.computed + size
            ):
                is_open = [one for one in self._sequences.values() if one.cache is not None]
                self._put_back(max(is_open, key=lambda one: one.number))
        return [(sequence, size) for sequence, size in by_age if sequence.cache is not None]

    def _put_back(self, sequence: RunningSequence[Key]) -> None:
        log.info("engine.put_back", request_id=sequence.job.request_id, tokens=sequence.computed)
        self._runner.close(sequence.cache, keep=True)  # type: ignore[arg-type] # it is open
        sequence.put_back()
        self._openings.add(sequence)

    def _run(self, planned: Sequence[tuple[RunningSequence[Key], int]]) -> None:
        if not planned:
            return
        try:
            slices = [one.slice(size) for one, size in planned]
            rows = self._runner.step(slices)
        except Exception:
            self._failures += 1
            self._fail([one for one, _ in planned])
            return
        self._failures = 0
        for sequence, size in planned:
            if sequence.prefilling:
                self._openings.freed()
            sequence.computed += size
        self._sample(
            [
                (one, row)
                for (one, _), found in zip(planned, rows, strict=True)
                if found is not None and (row := one.last_row(found)) is not None
            ]
        )

    def _sample(self, computed: Sequence[tuple[RunningSequence[Key], Row]]) -> None:
        """Choose all next ids at once; what was only to be scored has ended."""
        for one in [one for one, _ in computed if not one.job.max_tokens]:
            self._note_prefilled(one)
            self._close(one, "length")
        computed = [(one, row) for one, row in computed if one.job.max_tokens]
        next_ids = {one.key: token_id for one, _ in computed if (token_id := one.forced()) is not None}
        free = [(one, row) for one, row in computed if one.key not in next_ids]
        rows = [(one, row) for one, logits in free if (row := self._row(one, logits)) is not None]
        chosen = self._choose([row for _, row in rows])
        next_ids.update(zip((one.key for one, _ in rows), chosen, strict=True))
        for sequence, logits in [(one, row) for one, row in computed if one.key in next_ids]:
            try:
                self._advance(sequence, sequence.sampler.take(next_ids[sequence.key]), logits)
            except OutOfGrammar as error:
                self._leave_grammar(sequence, error)
            except Exception:  # logits that nothing can be sampled from, above all: the others are fine
                self._fail([sequence])

    def _row(self, sequence: RunningSequence[Key], logits: Row) -> SampleRow | None:
        """What the next id is chosen from; None for a text that its grammar cannot let go on, which has ended."""
        try:
            return sequence.row(logits)
        except OutOfGrammar as error:
            self._leave_grammar(sequence, error)
            return None

    def _leave_grammar(self, sequence: RunningSequence[Key], error: OutOfGrammar) -> None:
        log.warning("engine.grammar_spent", request_id=sequence.job.request_id, reason=str(error))
        self._close(sequence, "length")

    def _advance(self, sequence: RunningSequence[Key], token_id: int, logits: Row) -> None:
        if sequence.first_token is None:
            self._note_prefilled(sequence)
        sequence.sampled += 1
        self._next.generation_tokens += 1
        if token_id in self._eos or token_id in sequence.job.sampling.stop_ids:
            self._close(sequence, "stop")
            return
        if sequence.constraint is not None:
            sequence.constraint.accept(token_id)
        if sequence.thinking is not None:
            sequence.thinking.take(token_id)
        pieces = sequence.transcript.feed(token_id, sequence.score(logits, token_id))
        if sequence.transcript.stopped:
            self._close(sequence, "stop", pieces)
        elif sequence.sampled >= sequence.job.max_tokens:
            self._close(sequence, "length", pieces)
        else:
            sequence.ids.append(token_id)
            if pieces:
                self._next.deliveries.append(Delivery(key=sequence.key, items=pieces))

    def _note_prefilled(self, sequence: RunningSequence[Key]) -> None:
        sequence.first_token = self._clock()
        self._next.prompt_tokens += len(sequence.job.prompt_ids)
        self._next.cached_tokens += sequence.reused

    def _close(
        self, sequence: RunningSequence[Key], reason: StopReason, pieces: Sequence[Piece] = ()
    ) -> None:
        items: list[Piece | Finish] = [*pieces, *sequence.transcript.close()]
        reason = "stop" if sequence.transcript.stopped else reason
        self._end(sequence, items=[*items, sequence.finish(reason, self._clock())])

    def _fail(self, sequences: Sequence[RunningSequence[Key]]) -> None:
        requests = [sequence.job.request_id for sequence in sequences]
        log.exception("engine.step_failed", request_ids=requests, consecutive=self._failures)
        for sequence in sequences:
            self._end(sequence, error=GenerationFailed())

    def _end(
        self,
        sequence: RunningSequence[Key],
        *,
        items: Sequence[Piece | Finish] = (),
        error: EngineError | None = None,
    ) -> None:
        del self._sequences[sequence.key]
        self._openings.discard(sequence)
        self._next.deliveries.append(Delivery(key=sequence.key, items=items, error=error, ended=True))
        if sequence.cache is not None:
            keep = error is None and not sequence.forgotten
            self._runner.close(sequence.cache, keep=keep, session=sequence.session)
            self._openings.freed()

    def _running_ids(self, owner: str, session_id: str) -> list[int]:
        """The ids computed so far of the session's newest running sequence."""
        for one in reversed(self._sequences.values()):
            if one.session == (owner, session_id) and one.computed:
                return one.computed_ids
        return []

    def _release_session(self, owner: str, session_id: str) -> list[CacheHandle[Any]]:
        """Let the session's running sequences go on without it, and leave nothing: their caches."""
        found = []
        for one in self._sequences.values():
            if one.session == (owner, session_id):
                one.job = attrs.evolve(one.job, session_id=None)
                one.forgotten = True
                found += [] if one.cache is None else [one.cache]
        return found
