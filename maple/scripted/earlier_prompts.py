"""What a prompt shares with those before it: what a model's prefix cache would hold."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

GRAIN = 64
_MOST_BLOCKS = 65_536


class EarlierPrompts:
    """The prompts of each owner in blocks of ``GRAIN`` ids; all are forgotten when there are too many blocks."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def shared(self, owner: str, ids: Sequence[int]) -> int:
        """How many ids ``ids`` has in common with an earlier prompt, whole blocks and never all; remembers it."""
        if len(self._blocks) > _MOST_BLOCKS:
            self._blocks.clear()
        shared, before = 0, hash(owner)
        for end in range(GRAIN, len(ids), GRAIN):
            block: tuple[Hashable, ...] = (before, *ids[end - GRAIN : end])
            before = hash(block)
            shared = end if before in self._blocks else shared
            self._blocks.add(before)
        return shared
