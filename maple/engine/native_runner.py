"""The runner over the native kernels: all slices of a step in one call, keys and values in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from maple.engine.cache import CacheHandle
from maple.engine.kv_blocks import BlockPool, BlockSequence
from maple.engine.runner import SequenceSlice
from maple.kernels import KV_BLOCK_TOKENS, ModelShape, NativeModel, StepSlice

__all__ = ["BlockBudget", "NativeKeysAndValues", "NativeRunner"]

Row = npt.NDArray[np.float32] | None


@attrs.frozen(kw_only=True)
class BlockBudget:
    """How many KV blocks there are, and the longest sequence that always fits, in tokens.

    Every one of the engine's slots gets room for such a sequence, so that none can run out of blocks.
    """

    blocks: int
    sliding_blocks: int
    longest: int

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        *,
        bytes_each: tuple[int, int],
        budget: int,
        slots: int,
        longest: int,
        chunk: int,
    ) -> BlockBudget:
        """Blocks for ``slots`` sequences of up to ``longest`` tokens, or of fewer within ``budget`` bytes.

        ``bytes_each``: of a block of the full and of the sliding layers; ``chunk``: most tokens of a slice.
        ``longest`` is 0 where not even one block fits.
        """
        full, sliding = bytes_each
        window = -(-(shape.window + chunk) // KV_BLOCK_TOKENS) + 1
        blocks = -(-longest // KV_BLOCK_TOKENS)
        sliding_blocks = min(window, blocks)
        room = budget // slots - sliding_blocks * sliding
        if full:
            blocks = max(0, min(blocks, room // full))
        elif room < 0:
            blocks = 0
        return cls(
            blocks=blocks * slots,
            sliding_blocks=sliding_blocks * slots,
            longest=min(longest, blocks * KV_BLOCK_TOKENS),
        )


@attrs.frozen(eq=False)
class NativeKeysAndValues:
    """One sequence's blocks, as a cache handle's store."""

    blocks: BlockSequence
    bytes_each: tuple[int, int]

    @property
    def length(self) -> int:
        """Tokens computed."""
        return self.blocks.length

    @property
    def nbytes(self) -> int:
        """Memory of the blocks held."""
        full, sliding = self.blocks.held
        return full * self.bytes_each[0] + sliding * self.bytes_each[1]


class NativeRunner:
    """Runs all slices together; a sequence's rows are bit for bit those it gets alone.

    A step cannot be interrupted: a cancelled slice is left out only before it. Slices that the model's
    ``max_tokens`` cannot take together are run one call after another.
    """

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._full = BlockPool(model.kv_blocks)
        self._sliding = BlockPool(model.sliding_kv_blocks)
        self._bytes_each = (model.kv_block_bytes(sliding=False), model.kv_block_bytes(sliding=True))

    @property
    def kv_bytes(self) -> int:
        """Memory of all blocks that sequences hold."""
        return self._full.taken * self._bytes_each[0] + self._sliding.taken * self._bytes_each[1]

    def open(self, owner: str, prompt_ids: Sequence[int]) -> CacheHandle[NativeKeysAndValues]:
        """An empty sequence; its blocks are taken as it grows."""
        blocks = BlockSequence(self._full, self._sliding, self._model.shape.window, KV_BLOCK_TOKENS)
        return CacheHandle(NativeKeysAndValues(blocks, self._bytes_each))

    def step(self, slices: Sequence[SequenceSlice]) -> list[Row]:
        """Run the slices; the rows are views of one array."""
        rows: list[Row] = [None] * len(slices)
        for group in self._groups(slices):
            self._run(slices, group, rows)
        return rows

    def close(self, cache: CacheHandle[NativeKeysAndValues]) -> None:
        """Give the blocks back."""
        cache.store.blocks.close()

    def shut(self) -> None:
        """Stop the kernels' threads and free the KV cache; no step may follow."""
        self._model.close()

    def _groups(self, slices: Sequence[SequenceSlice]) -> Iterator[list[int]]:
        """Indices of live slices, as many as fit into one call."""
        group: list[int] = []
        tokens = 0
        for index, one in enumerate(slices):
            if one.cancelled():
                continue
            if group and tokens + len(one.ids) > self._model.max_tokens:
                yield group
                group, tokens = [], 0
            group.append(index)
            tokens += len(one.ids)
        if group:
            yield group

    def _run(self, slices: Sequence[SequenceSlice], group: Sequence[int], rows: list[Row]) -> None:
        steps = [self._prepare(slices[index]) for index in group]
        logits = self._model.step(steps)
        row = 0
        for index, step in zip(group, steps, strict=True):
            one = slices[index]
            one.cache.store.blocks.advance(one.start + len(one.ids))
            if step.logits:
                rows[index] = logits[row]
                row += 1

    def _prepare(self, one: SequenceSlice) -> StepSlice:
        blocks: BlockSequence = one.cache.store.blocks
        blocks.reach(one.start + len(one.ids))
        return StepSlice(
            tokens=one.ids,
            start=one.start,
            blocks=blocks.blocks,
            sliding_blocks=blocks.sliding_blocks,
            logits=int(one.want_logits),
        )
