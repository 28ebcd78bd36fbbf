"""What a step tells the event loop."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import attrs

from maple.engine.api import EngineError, Finish, Piece, Prefill

__all__ = ["Delivery", "StepReport", "Totals"]

Key = TypeVar("Key", bound=Hashable)


@attrs.frozen(kw_only=True)
class Delivery(Generic[Key]):
    """What a step made for one sequence. Once it has ended, in whatever way, its slot is free."""

    key: Key
    items: Sequence[Piece | Finish] = ()
    error: EngineError | None = None
    ended: bool = False


@attrs.frozen(kw_only=True)
class StepReport(Generic[Key]):
    """What a step did; tokens, queries and hits are those of this step, the rest is what there is after it.

    ``broken``: the model fails again and again, and no further step should be tried.
    """

    deliveries: Sequence[Delivery[Key]]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    kv_bytes: int = 0
    kv_blocks: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    evictions: int = 0
    sessions: int = 0
    prefills: Sequence[Prefill] = ()
    broken: bool = False


@attrs.define
class Totals:
    """Counts of all steps so far, and what there is after the last."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    kv_bytes: int = 0
    kv_blocks: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_evictions: int = 0
    sessions: int = 0
    prefills: Sequence[Prefill] = ()

    def add(self, report: StepReport[Key]) -> None:
        """Count a step."""
        self.prompt_tokens += report.prompt_tokens
        self.cached_tokens += report.cached_tokens
        self.generation_tokens += report.generation_tokens
        self.kv_bytes = report.kv_bytes
        self.kv_blocks = report.kv_blocks
        self.prefix_cache_queries += report.prefix_queries
        self.prefix_cache_hits += report.prefix_hits
        self.prefix_cache_evictions = report.evictions
        self.sessions = report.sessions
        self.prefills = report.prefills
