"""What runners' stores of keys and values have in common: handles, waiting, limits, and what a session saves.

Opening a handle names the owner and the prompt, so that a store hands out what it still has of them: finished
sequences are kept until there is no more room, running ones lend what they have computed.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import attrs
import numpy as np
import numpy.typing as npt


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
    """A sequence's place in a store. ``reused`` tokens of its prompt were there when it was opened."""

    store: Store
    reused: int = 0


class Wait(enum.Enum):
    """Why a sequence cannot be opened yet."""

    MEMORY = "memory"
    """Others hold it. Those that came later must not overtake."""
    PREFIX = "prefix"
    """Another sequence is computing the same prompt: what it computes need not be computed again."""


@attrs.frozen(kw_only=True)
class CacheLimits:
    """``prefix_bytes`` of ended sequences are kept for reuse, at most, by their owners, or all if ``shared``."""

    prefix_bytes: int = 0
    shared: bool = False

    def domain(self, owner: str) -> str:
        """Among whom prefixes are shared."""
        return "" if self.shared else owner


@attrs.frozen(kw_only=True, eq=False)
class KvSnapshot:
    """The keys and values of a sequence's first ``ids``, copied out of a store: what a session's file holds.

    ``arrays`` are the store's own, of plain numeric types; ``kv_format`` names their layout.
    """

    ids: Sequence[int]
    kv_format: str
    arrays: Mapping[str, npt.NDArray[np.generic]]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


class SnapshotUnfit(ValueError):
    """A snapshot's arrays are not what its format demands."""
