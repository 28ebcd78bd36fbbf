"""Counts of a fleet: of those replicas that are there, and of what those that are gone had counted."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from maple.engine.stats import EngineStats, Prefill

_COUNTERS = (
    "prompt_tokens",
    "cached_tokens",
    "generation_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prefix_cache_evictions",
)
_GAUGES = ("kv_bytes", "kv_blocks", "sessions")


class Totals:
    """Sums that never fall when a replica goes."""

    def __init__(self) -> None:
        self._gone = EngineStats()

    def keep(self, stats: EngineStats) -> None:
        """A replica is gone: what it counted stays, what it held does not."""
        self._gone = _add(self._gone, stats, _COUNTERS)

    def sum(self, present: Iterable[EngineStats]) -> EngineStats:
        """The fleet's counts; queues are the fronts' own."""
        total = self._gone
        prefills: list[Prefill] = []
        for stats in present:
            total = _add(total, stats, (*_COUNTERS, *_GAUGES))
            prefills.extend(stats.prefills)
        return attrs.evolve(total, prefills=tuple(prefills))


def _add(first: EngineStats, second: EngineStats, names: tuple[str, ...]) -> EngineStats:
    return attrs.evolve(first, **{name: getattr(first, name) + getattr(second, name) for name in names})
