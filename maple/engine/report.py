"""What a step tells the event loop."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import attrs

from maple.engine.api import Finish, Piece
from maple.engine.errors import EngineError
from maple.engine.stats import EngineStats, Prefill

Key = TypeVar("Key", bound=Hashable)


@attrs.frozen(kw_only=True)
class Delivery(Generic[Key]):
    """What a step made for one sequence. Once it has ended, in whatever way, its slot is free."""

    key: Key
    items: Sequence[Piece | Finish] = ()
    error: EngineError | None = None
    ended: bool = False


@attrs.define(kw_only=True)
class StepReport(Generic[Key]):
    """What a step did; tokens, queries and hits are those of this step, the rest is what there is after it.

    ``opened`` began to run, with so many tokens reused; ``parked`` wait for memory from now on. ``broken``: the model
    fails again and again, and no further step should be tried. The scheduler fills one in and gives it away.
    """

    deliveries: list[Delivery[Key]] = attrs.Factory(list)
    opened: dict[Key, int] = attrs.Factory(dict)
    parked: list[Key] = attrs.Factory(list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    kv_bytes: int = 0
    kv_blocks: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    evictions: int = 0
    sessions: int = 0
    prefills: Mapping[Key, Prefill] = attrs.Factory(dict)
    broken: bool = False

    def added_to(self, stats: EngineStats) -> EngineStats:
        """Counts with this step in them; those that the scheduler knows nothing of stay."""
        return attrs.evolve(
            stats,
            prompt_tokens=stats.prompt_tokens + self.prompt_tokens,
            cached_tokens=stats.cached_tokens + self.cached_tokens,
            generation_tokens=stats.generation_tokens + self.generation_tokens,
            kv_bytes=self.kv_bytes,
            kv_blocks=self.kv_blocks,
            prefix_cache_queries=stats.prefix_cache_queries + self.prefix_queries,
            prefix_cache_hits=stats.prefix_cache_hits + self.prefix_hits,
            prefix_cache_evictions=self.evictions,
            sessions=self.sessions,
            prefills=tuple(self.prefills.values()),
        )
