"""Blocks of keys and values: holders, budgets, and what a sequence may come to hold."""

from __future__ import annotations

import pytest

from maple.engine.kv.block_table import SequenceBound
from maple.engine.kv.blocks import BlockMemory, BlockPool, OutOfBlocks

FULL, SLIDING = False, True


def memory(budget: int, full: int = 10, sliding: int = 30) -> BlockMemory:
    return BlockMemory(BlockPool(1000, full), BlockPool(1000, sliding), budget)


def test_a_block_is_free_once_its_last_holder_lets_go() -> None:
    """Holders are counted, and no block is handed out twice meanwhile."""
    pool = BlockPool(2, 8)
    first, second = pool.take(), pool.take()
    assert first != second
    assert pool.hold(first) == first
    assert pool.free(first) == 1
    assert (pool.taken, pool.warm) == (2, 0)
    assert pool.free(first) == 0
    assert pool.take() == first


def test_an_exhausted_pool_says_so() -> None:
    """Taking more than there is raises, and what was taken can still be given back."""
    pool = BlockPool(2, 8)
    pool.take()
    last = pool.take()
    with pytest.raises(OutOfBlocks, match="all 2 KV blocks"):
        pool.take()
    pool.free(last)
    assert pool.take() == last


def test_memory_never_passes_the_budget() -> None:
    """Freed blocks of one pool are given back to the system before the other takes their room."""
    discarded = []
    both = memory(100)
    both.discard = lambda sliding, block: discarded.append((sliding, block))
    full = [both.take(FULL) for _ in range(10)]
    with pytest.raises(OutOfBlocks):
        both.take(SLIDING)
    for block in full:
        both.full.free(block)
    assert both.taken_bytes == 0
    assert both.take(SLIDING) == 0
    assert discarded == [(FULL, block) for block in reversed(full[-3:])]
    assert both.full.resident_bytes + both.sliding.resident_bytes <= 100
    assert len({both.take(FULL) for _ in range(7)}) == 7
    with pytest.raises(OutOfBlocks):
        both.take(FULL)


@pytest.mark.parametrize("budget", [0, 39, 40, 399, 400, 520, 1000, 1700])
def test_the_longest_sequence_is_the_longest_that_fits(budget: int) -> None:
    """Its memory is within the budget, and that of one block more is not."""
    bound, both = SequenceBound(window=512, step=64), memory(budget)
    longest = bound.longest(both)
    assert bound.bytes_for(longest, both) <= budget
    assert bound.bytes_for(longest + 1, both) > budget
