"""What becomes of a job that has its slot: a sequence with all that its ids go through, nothing computed yet."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TypeVar

from maple.engine.allowed import Allowed
from maple.engine.api import Job
from maple.engine.constraint import Constraint
from maple.engine.runner import LoadedEngine
from maple.engine.sampling import Sampler
from maple.engine.scorer import Scorer
from maple.engine.sequence import RunningSequence
from maple.engine.thinking import Thinking
from maple.engine.transcript import Transcript

Key = TypeVar("Key")


class NewSequences:
    """Makes the sequences of one loaded engine, on its thread."""

    def __init__(self, loaded: LoadedEngine, clock: Callable[[], float]) -> None:
        self._token_bytes = loaded.token_bytes
        self._token_ids = loaded.token_ids
        self._allowed = Allowed.from_ids(loaded.token_ids)
        self._eos = frozenset(loaded.served.eos_token_ids)
        self._clock = clock
        self._numbers = itertools.count()

    def make(
        self,
        key: Key,
        job: Job,
        cancelled: Callable[[], bool],
        hurried: Callable[[], bool],
        queue_seconds: float,
    ) -> RunningSequence[Key]:
        """A sequence for the job; ``key`` names it in deliveries."""
        sequence = RunningSequence(
            key=key,
            number=next(self._numbers),
            job=job,
            cancelled=cancelled,
            sampler=Sampler(job.sampling, self._allowed, job.prompt_ids, self._eos),
            transcript=Transcript(
                self._token_bytes, job.stop, job.stop_behind, at_least=job.sampling.min_tokens
            ),
            constraint=self._constraint(job),
            thinking=None if job.thinking is None else Thinking(job.thinking, self._token_bytes, hurried),
            scorer=None if job.scores is None else Scorer(job.scores, self._allowed, self._token_bytes),
            queue_seconds=queue_seconds,
            started=self._clock(),
            ids=list(job.prompt_ids),
        )
        if job.echo and job.scores is None:
            for token_id in job.prompt_ids:
                sequence.transcript.echo(token_id, None)
        return sequence

    def _constraint(self, job: Job) -> Constraint | None:
        if job.grammar is None:
            return None
        return Constraint(job.grammar, job.grammar_behind, self._token_bytes, lambda: self._newlines)

    @functools.cached_property
    def _newlines(self) -> frozenset[int]:
        """Ids of one newline or two."""
        return frozenset(
            int(one) for one in self._token_ids if self._token_bytes[int(one)] in (b"\n", b"\n\n")
        )
