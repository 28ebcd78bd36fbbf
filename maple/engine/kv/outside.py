"""How blocks get out of memory and in again: what a store of blocks offers, and what it tells an observer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from maple.engine.kv.block_table import BlockTable
from maple.engine.kv.prefix_tree import PrefixNode, SessionKey


@attrs.frozen(kw_only=True)
class Resident:
    """What is in memory of some ids: ``depth`` whole blocks, those with their ``sliding`` part, ``usable`` ids to
    go on from.
    """

    depth: int
    sliding: frozenset[int]
    usable: int


class BlockObserver(Protocol):
    """Hears what becomes of whole blocks. All of it is called on the engine's thread, and must be quick."""

    def made(self, table: BlockTable, node: PrefixNode) -> None:
        """A sequence has put a block into the tree."""
        ...

    def leaving(self, node: PrefixNode, *, sliding_only: bool) -> None:
        """Room is needed: a block, or its sliding part, goes now; its bytes are still there."""
        ...

    def ended(self, table: BlockTable, session: SessionKey | None) -> None:
        """A sequence has ended, and its blocks are kept."""
        ...

    def distrusted(self, nodes: Sequence[PrefixNode]) -> None:
        """What a sequence made is not to be kept anywhere."""
        ...


class BlockSource(Protocol):
    """A runner's blocks of 64 tokens. All of it is called on the engine's thread."""

    @property
    def window(self) -> int:
        """What a token sees of a sliding layer, in tokens, itself included."""
        ...

    def observe(self, observer: BlockObserver) -> None:
        """Tell this observer from now on."""
        ...

    def block_bytes(self, *, sliding: bool) -> int:
        """Bytes of a block, or of its sliding part."""
        ...

    def copy(self, block: int, *, sliding: bool) -> bytes:
        """A block's bytes."""
        ...

    def resident(self, owner: str, ids: Sequence[int]) -> Resident:
        """What is in memory of the ids."""
        ...

    def insert(
        self,
        owner: str,
        ids: Sequence[int],
        first: int,
        full: Sequence[memoryview],
        sliding: Mapping[int, memoryview],
    ) -> int:
        """Put blocks ``first``, ``first`` + 1, … of the ids into the tree: how many there are from the start, then.

        Sliding parts are given by their number. Nothing is put where those before ``first`` are not there, or where
        running sequences leave no room: 0.
        """
        ...
