"""Keys and values in blocks of 64 tokens: which are free, who holds the others, and what memory they cost."""

from __future__ import annotations

from collections.abc import Callable

import attrs


class OutOfBlocks(RuntimeError):
    """There is no memory for another block: more was admitted than fits."""


class StaleBlock(RuntimeError):
    """A block was given to somebody else since it was noted: its content is not what was meant."""


class BlockPool:
    """The blocks of one pool of the kernels, each with the number of its holders.

    A block's generation tells its taking from earlier ones; whoever notes a block notes it too.

    A freed block stays warm, its pages in memory, until it is taken again or ``cool`` gives them up. Warm blocks
    are handed out first, so the memory of blocks that were never needed is never touched.
    """

    def __init__(self, blocks: int, block_bytes: int) -> None:
        self.size = blocks
        self.block_bytes = block_bytes
        self._holders: dict[int, int] = {}
        self._generations: dict[int, int] = {}
        self._takings = 0
        self._warm: list[int] = []
        self._cold: list[int] = []
        self._fresh = 0

    @property
    def taken(self) -> int:
        """Blocks that somebody holds."""
        return len(self._holders)

    @property
    def warm(self) -> int:
        """Free blocks whose pages are in memory."""
        return len(self._warm)

    @property
    def resident_bytes(self) -> int:
        """Memory of taken and warm blocks."""
        return (self.taken + self.warm) * self.block_bytes

    def holders(self, block: int) -> int:
        """How many hold the block."""
        return self._holders.get(block, 0)

    def take(self) -> int:
        """A block with one holder; raises OutOfBlocks."""
        if self._warm:
            block = self._warm.pop()
        elif self._cold:
            block = self._cold.pop()
        elif self._fresh < self.size:
            block, self._fresh = self._fresh, self._fresh + 1
        else:
            raise OutOfBlocks(f"all {self.size} KV blocks are taken")
        self._holders[block] = 1
        self._takings += 1
        self._generations[block] = self._takings
        return block

    def generation(self, block: int) -> int:
        """Which taking of the block this is."""
        return self._generations[block]

    def hold(self, block: int, generation: int | None = None) -> int:
        """One holder more; returns the block. Raises StaleBlock where it is not of that generation."""
        if generation not in (None, self._generations[block]) or block not in self._holders:
            raise StaleBlock(f"block {block} has been taken anew")
        self._holders[block] += 1
        return block

    def free(self, block: int) -> int:
        """One holder less: how many are left. With none, the block is free."""
        left = self._holders[block] - 1
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
            self._warm.append(block)
        return left

    def cool(self) -> int:
        """Take a warm block out of memory's account; its pages are the caller's to give up."""
        self._cold.append(self._warm.pop())
        return self._cold[-1]


@attrs.define(eq=False)
class BlockMemory:
    """The pools of full and sliding layers within one budget of bytes.

    The pools' address space may be larger than the budget: pages move between them as blocks do. ``discard``
    gives up the pages of a free block, named by pool (sliding or not) and number.
    """

    full: BlockPool
    sliding: BlockPool
    budget: int
    discard: Callable[[bool, int], None] = lambda _sliding, _block: None

    @property
    def taken_bytes(self) -> int:
        """Memory of the blocks that somebody holds."""
        return self.full.taken * self.full.block_bytes + self.sliding.taken * self.sliding.block_bytes

    def fits(self, sliding: bool) -> bool:
        """Whether a further block keeps within the budget."""
        return self.taken_bytes + self.pool(sliding).block_bytes <= self.budget

    def take(self, sliding: bool) -> int:
        """A block of one pool, at the cost of the other's warm ones if need be; raises OutOfBlocks."""
        pool, other = self.pool(sliding), self.pool(not sliding)
        if not pool.warm:
            while other.warm and self._resident_bytes + pool.block_bytes > self.budget:
                self.discard(not sliding, other.cool())
            if self._resident_bytes + pool.block_bytes > self.budget:
                raise OutOfBlocks(f"{self.budget} bytes of KV cache are taken")
        return pool.take()

    def pool(self, sliding: bool) -> BlockPool:
        """The pool of the sliding or of the full layers."""
        return self.sliding if sliding else self.full

    @property
    def _resident_bytes(self) -> int:
        return self.full.resident_bytes + self.sliding.resident_bytes
