"""Whose keys and values are in memory: one handle a sequence, and the bytes of all of them.

Runners differ in what they store; a handle hides that from the scheduler. Opening one names the owner and the
prompt, so that a store which keeps finished sequences can hand out what it still has of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import attrs

__all__ = ["CacheHandle", "CachePool", "KeysAndValues"]


class KeysAndValues(Protocol):
    """The keys and values of one sequence, in whatever form a runner has them."""

    @property
    def length(self) -> int:
        """Tokens they cover, from the first."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory they hold, spare capacity included."""
        ...


Store = TypeVar("Store", bound=KeysAndValues)


@attrs.frozen(eq=False)
class CacheHandle(Generic[Store]):
    """A sequence's place in a pool. ``reused`` tokens of its prompt were there when it was opened."""

    store: Store
    reused: int = 0


class CachePool(Generic[Store]):
    """All open sequences of a runner; the engine's thread alone uses it."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._open: set[CacheHandle[Store]] = set()

    @property
    def nbytes(self) -> int:
        """Memory of all open sequences."""
        return sum(handle.store.nbytes for handle in self._open)

    def open(self, owner: str, prompt_ids: Sequence[int]) -> CacheHandle[Store]:
        """A handle for a new sequence. Nothing outlives its sequence yet, so none of the prompt is there."""
        handle = CacheHandle(self._make())
        self._open.add(handle)
        return handle

    def close(self, handle: CacheHandle[Store]) -> None:
        """Forget the sequence; once is enough, twice is harmless."""
        self._open.discard(handle)
