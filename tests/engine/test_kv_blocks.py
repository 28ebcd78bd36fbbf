from __future__ import annotations

import pytest

from maple.engine.kv_blocks import BlockPool, BlockSequence, OutOfBlocks
from maple.engine.native_runner import BlockBudget
from maple.kernels import ModelShape


def sequence(full: BlockPool, sliding: BlockPool, window: int = 128) -> BlockSequence:
    return BlockSequence(full, sliding, window, 64)


def test_blocks_are_taken_as_a_sequence_grows() -> None:
    """A block is taken when its first token comes, not before."""
    full, sliding = BlockPool(4), BlockPool(4)
    one = sequence(full, sliding)
    one.reach(64)
    assert (full.taken, sliding.taken) == (1, 1)
    one.reach(65)
    assert (full.taken, sliding.taken) == (2, 2)
    one.close()
    assert (full.taken, sliding.taken) == (0, 0)


def test_sliding_layers_give_back_what_left_the_window() -> None:
    """A block goes back once the next token's window begins behind it, and the table says -1 for it."""
    full, sliding = BlockPool(40), BlockPool(4)
    one = sequence(full, sliding)
    for length in range(1, 2001):
        one.reach(length)
        one.advance(length)
        assert sliding.taken <= 3
        first = next(i for i, block in enumerate(one.sliding_blocks) if block >= 0)
        assert first == max(0, length - 127) // 64
    assert one.held == (32, sliding.taken)
    one.close()
    one.close()
    assert (full.taken, sliding.taken) == (0, 0)


def test_no_block_is_handed_out_twice() -> None:
    """Blocks of several sequences are distinct, also after some came back."""
    full, sliding = BlockPool(9), BlockPool(9)
    first, second = sequence(full, sliding), sequence(full, sliding)
    first.reach(300)
    second.reach(200)
    first.close()
    third = sequence(full, sliding)
    third.reach(300)
    assert not set(second.blocks) & set(third.blocks)
    assert len(set(third.blocks)) == 5


def test_an_exhausted_pool_says_so() -> None:
    """Taking more than there is raises, and what was taken can still be given back."""
    full, sliding = BlockPool(2), BlockPool(9)
    one = sequence(full, sliding)
    with pytest.raises(OutOfBlocks, match="all 2 KV blocks"):
        one.reach(129)
    one.close()
    assert (full.taken, sliding.taken) == (0, 0)


SHAPE = ModelShape(
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    rotary_dim=8,
    window=512,
    experts=4,
    experts_per_token=2,
    expert_width=16,
    vocabulary=64,
    full_layers=(False, True),
)


def budget(megabytes: int, slots: int = 1, longest: int = 100_000) -> BlockBudget:
    return BlockBudget.of(
        SHAPE, bytes_each=(1 << 20, 1 << 20), budget=megabytes << 20, slots=slots, longest=longest, chunk=512
    )


def test_with_enough_memory_every_slot_gets_the_whole_context() -> None:
    """Full layers hold all of it, sliding ones the window, a chunk and a block more."""
    got = budget(10_000, slots=2)
    assert (got.blocks, got.sliding_blocks, got.longest) == (2 * 1563, 2 * 17, 100_000)


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_less_memory_cuts_the_context(slots: int) -> None:
    """The blocks of all slots stay within the budget."""
    got = budget(500, slots)
    assert got.blocks + got.sliding_blocks <= 500
    assert got.longest == got.blocks // slots * 64


def test_no_memory_is_no_context() -> None:
    assert budget(17).longest == 0
