"""One sequence on its way through the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs

from maple.engine.api import Finish, Job, StopReason
from maple.engine.constraint import Constraint
from maple.engine.kv.cache import CacheHandle
from maple.engine.kv.prefix_tree import SessionKey
from maple.engine.prefill import Prompt
from maple.engine.runner import SCORED_ROWS, SequenceSlice
from maple.engine.sampling import Floats, Sampler, SampleRow
from maple.engine.scorer import Scorer
from maple.engine.scores import Score
from maple.engine.stats import Prefill
from maple.engine.thinking import Thinking
from maple.engine.transcript import Transcript

Key = TypeVar("Key")


@attrs.define(kw_only=True, eq=False)
class RunningSequence(Generic[Key]):
    """A job with a slot: its ``ids``, prompt and output, of which ``computed`` are in its ``cache``.

    Without a cache it waits for memory, or was put back for others: then it goes on as if all its ids were prompt.
    ``number`` tells who came first. ``started`` is when it was first opened, and until then, when it came.
    """

    key: Key
    number: int
    job: Job
    cancelled: Callable[[], bool]
    sampler: Sampler
    transcript: Transcript
    constraint: Constraint | None
    thinking: Thinking | None
    scorer: Scorer | None
    queue_seconds: float
    started: float
    ids: list[int]
    cache: CacheHandle[Any] | None = None
    reused: int = 0
    computed: int = 0
    sampled: int = 0
    opened: bool = False
    parked: bool = False
    overtaken: int = 0
    forgotten: bool = False
    first_token: float | None = None
    echoed: int = 0

    @property
    def prefilling(self) -> bool:
        """Whether more than the newest id is to be computed, or nothing was sampled yet."""
        return self.sampled == 0 or len(self.ids) - self.computed > 1

    @property
    def prompt(self) -> Prompt:
        """What is left to compute before the next id can be sampled."""
        return Prompt(self.computed, len(self.ids) - self.computed)

    @property
    def longest(self) -> int:
        """The most tokens it may come to."""
        return len(self.job.prompt_ids) + self.job.max_tokens

    @property
    def session(self) -> SessionKey | None:
        """Whose conversation it goes on with."""
        return None if self.job.session_id is None else (self.job.owner, self.job.session_id)

    @property
    def scores_prompt(self) -> bool:
        """Whether the scores of some of its prompt are still to be computed."""
        return self.job.echo and self.scorer is not None and self.echoed < len(self.job.prompt_ids)

    @property
    def computed_ids(self) -> list[int]:
        """The ids that are in the cache."""
        return self.ids[: self.computed]

    @property
    def progress(self) -> Prefill:
        """For the statistics."""
        return Prefill(
            request_id=self.job.request_id,
            done_tokens=self.computed,
            prompt_tokens=len(self.job.prompt_ids),
            cached_tokens=self.reused,
        )

    def forced(self) -> int | None:
        """The id that has to come next, whatever the logits say."""
        return None if self.thinking is None else self.thinking.forced(self.job.max_tokens - self.sampled)

    def row(self, logits: Floats) -> SampleRow:
        """What the next id is chosen from. Raises OutOfGrammar.

        An answer that is held to a form has to come: the text does not end before it begins.
        """
        if self.constraint is None:
            return self.sampler.row(logits)
        mask = self.constraint.mask()
        return self.sampler.row(logits, mask, ends=mask is not None)

    def score(self, logits: Floats, token_id: int) -> Score | None:
        """How likely the id was that follows a row of logits, where the job asks for it."""
        return None if self.scorer is None else self.scorer.score(logits, token_id)

    def share(self, size: int) -> int:
        """How many of its next ``size`` ids a step may take."""
        return min(size, SCORED_ROWS - self.computed % SCORED_ROWS) if self.scores_prompt else size

    def last_row(self, rows: Floats) -> Floats | None:
        """What comes next is chosen from, of the logits after the newest ids; those of a prompt are scored."""
        if self.scorer is not None and self.scores_prompt:
            self._score_prompt(self.scorer, rows)
            rows = rows[-1]
        return rows if self.computed == len(self.ids) else None

    def _score_prompt(self, scorer: Scorer, rows: Floats) -> None:
        prompt, start = self.job.prompt_ids, self.computed - len(rows) + 1
        if not self.echoed:
            self.transcript.echo(prompt[0], scorer.unscored(prompt[0]))
            self.echoed = 1
        for place, row in enumerate(rows, start):
            if self.echoed == place < len(prompt):
                self.transcript.echo(prompt[place], scorer.score(row, prompt[place]))
                self.echoed += 1

    def overdue(self, now: float) -> bool:
        """Whether it has run for longer than its job allows."""
        return self.opened and 0 < self.job.timeout <= now - self.started

    def open(self, cache: CacheHandle[Any], now: float) -> None:
        """It has memory, and what there was of its ids."""
        self.cache, self.computed, self.parked = cache, cache.reused, False
        if not self.opened:
            self.opened, self.reused = True, cache.reused
            self.queue_seconds += now - self.started
            self.started = now

    def put_back(self) -> None:
        """Its memory went to others; it is opened again when there is some."""
        self.cache, self.computed = None, 0

    def slice(self, size: int) -> SequenceSlice:
        """Its next ``size`` ids, for a step."""
        if self.cache is None:
            raise RuntimeError("a sequence that is not open was to run")
        end = self.computed + size
        return SequenceSlice(
            cache=self.cache,
            ids=self.ids[self.computed : end],
            start=self.computed,
            want_logits=end == len(self.ids) or self.scores_prompt,
            every_row=self.scores_prompt,
            cancelled=self.cancelled,
        )

    def finish(self, reason: StopReason, now: float) -> Finish:
        """Its end."""
        first = now if self.first_token is None else self.first_token
        return Finish(
            reason=reason,
            prompt_tokens=len(self.job.prompt_ids),
            completion_tokens=self.sampled,
            cached_tokens=self.reused,
            stop=self.transcript.stop_word,
            queue_seconds=self.queue_seconds,
            prefill_seconds=first - self.started,
            decode_seconds=now - first,
        )
