"""What one running sequence holds of the native kernels' blocks, and the most that it may come to hold."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from maple.engine.kv.blocks import BlockMemory
from maple.engine.kv.prefix_tree import BLOCK, PrefixNode


@attrs.frozen(kw_only=True)
class SequenceBound:
    """What a sequence may come to hold. ``window`` in tokens; a step adds at most ``step`` tokens to it."""

    window: int
    step: int

    @property
    def window_blocks(self) -> int:
        """Most sliding blocks that are needed at once."""
        return -(-(self.window + self.step) // BLOCK) + 1

    def bytes_for(self, tokens: int, memory: BlockMemory) -> int:
        """Most memory of a sequence of so many tokens."""
        blocks = -(-tokens // BLOCK)
        sliding = min(self.window_blocks, blocks)
        return blocks * memory.full.block_bytes + sliding * memory.sliding.block_bytes

    def longest(self, memory: BlockMemory) -> int:
        """The longest sequence that fits into all of the memory, in tokens."""
        full, sliding = memory.full.block_bytes, memory.sliding.block_bytes
        blocks = memory.budget // max(1, full + sliding)
        if blocks >= self.window_blocks:
            room = memory.budget - self.window_blocks * sliding
            blocks = room // full if full else memory.full.size
        return min(blocks, memory.full.size) * BLOCK


@attrs.define(eq=False, kw_only=True)
class BlockTable:
    """One running sequence: its computed ``ids`` and its blocks, one entry for every 64 of them.

    ``nodes`` are the whole blocks, shared through the tree; what comes after is the sequence's own. Entries of
    the sliding table before ``kept_from`` left the window and are -1.
    """

    root: PrefixNode
    domain: str
    prompt: Sequence[int]
    block_bytes: tuple[int, int]
    ids: list[int] = attrs.Factory(list)
    nodes: list[PrefixNode] = attrs.Factory(list)
    created: list[PrefixNode] = attrs.Factory(list)
    blocks: list[int] = attrs.Factory(list)
    sliding_blocks: list[int] = attrs.Factory(list)
    kept_from: int = 0

    @property
    def length(self) -> int:
        """Tokens computed."""
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Memory of its blocks, shared ones included."""
        full, sliding = self.block_bytes
        held = sum(block != -1 for block in self.sliding_blocks)
        return len(self.blocks) * full + held * sliding

    @property
    def parent(self) -> PrefixNode:
        """The node that the next whole block goes under."""
        return self.nodes[-1] if self.nodes else self.root
