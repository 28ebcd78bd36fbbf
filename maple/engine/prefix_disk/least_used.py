"""Which files go when there are too many bytes of them. Nothing is touched here."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

GRACE = 7 * 24 * 3600.0
"""Seconds by which what was of use again, or belongs to a live session, counts as younger."""
LASTING = 0.75
"""Of the limit: what such files may come to, so that new conversations can begin to last."""
KEPT = 0.9
"""Of the limit: what is left, so that not every write has to look."""


@attrs.frozen
class Entry:
    """A file of ``size`` bytes, last of use at ``used``, in Unix seconds; in the future, where it is to last."""

    path: str
    size: int
    used: float


def to_remove(entries: Iterable[Entry], now: float, limit: int) -> list[Entry]:
    """Nothing while all fit into ``limit`` bytes; else the longest unused, until there is some room."""
    by_age = sorted(entries, key=lambda one: one.used)
    excess = sum(one.size for one in by_age) - limit
    if excess <= 0:
        return []
    excess += int(limit * (1 - KEPT))
    lasting = sum(one.size for one in by_age if one.used > now) - int(limit * LASTING)
    ages = {}
    for one in by_age:
        fades = one.used > now and lasting > 0
        lasting -= one.size if fades else 0
        ages[one.path] = one.used - GRACE if fades else one.used
    removed = []
    for one in sorted(by_age, key=lambda one: ages[one.path]):
        if excess <= 0:
            break
        removed.append(one)
        excess -= one.size
    return removed
