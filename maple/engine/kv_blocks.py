"""Keys and values in blocks of 64 tokens: which blocks are free, and which belong to a sequence."""

from __future__ import annotations

import attrs

__all__ = ["BlockPool", "BlockSequence", "OutOfBlocks"]


class OutOfBlocks(RuntimeError):
    """Every block is taken: more was admitted than fits."""


class BlockPool:
    """The free blocks of one pool of the kernels; the block freed last is handed out first.

    So the memory of blocks that were never needed is never touched.
    """

    def __init__(self, blocks: int) -> None:
        self._size = blocks
        self._fresh = 0
        self._freed: list[int] = []

    @property
    def size(self) -> int:
        """All blocks."""
        return self._size

    @property
    def taken(self) -> int:
        """Blocks that sequences hold."""
        return self._fresh - len(self._freed)

    def take(self) -> int:
        """A block; raises OutOfBlocks."""
        if self._freed:
            return self._freed.pop()
        if self._fresh == self._size:
            raise OutOfBlocks(f"all {self._size} KV blocks are taken")
        self._fresh += 1
        return self._fresh - 1

    def free(self, block: int) -> None:
        """Give a block back."""
        self._freed.append(block)


@attrs.define(eq=False)
class BlockSequence:
    """The blocks of one sequence, a table for each pool; entry b is for tokens 64 b … 64 b + 63.

    Entries of the sliding table that left the window are -1. ``tokens`` is the length of a block.
    """

    full: BlockPool
    sliding: BlockPool
    window: int
    tokens: int
    length: int = 0
    blocks: list[int] = attrs.Factory(list)
    sliding_blocks: list[int] = attrs.Factory(list)
    _kept_from: int = 0  # entries before it have been given back

    @property
    def held(self) -> tuple[int, int]:
        """Blocks held of the full and of the sliding pool."""
        return len(self.blocks), len(self.sliding_blocks) - self._kept_from

    def reach(self, length: int) -> None:
        """Take the blocks that tokens up to ``length`` need; raises OutOfBlocks, keeping what was taken."""
        while len(self.blocks) * self.tokens < length:
            self.blocks.append(self.full.take())
        while len(self.sliding_blocks) * self.tokens < length:
            self.sliding_blocks.append(self.sliding.take())

    def advance(self, length: int) -> None:
        """The first ``length`` tokens are computed: give back what no later token's window reaches."""
        self.length = length
        oldest = max(0, length - self.window + 1) // self.tokens
        for index in range(self._kept_from, min(oldest, len(self.sliding_blocks))):
            self.sliding.free(self.sliding_blocks[index])
            self.sliding_blocks[index] = -1
            self._kept_from = index + 1

    def close(self) -> None:
        """Give everything back; twice is harmless."""
        for block in self.blocks:
            self.full.free(block)
        for block in self.sliding_blocks[self._kept_from :]:
            self.sliding.free(block)
        self.blocks, self.sliding_blocks, self._kept_from = [], [], 0
