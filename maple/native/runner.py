"""The runner over the native kernels: all slices of a step in one call, keys and values in blocks."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from maple.engine.kv.block_table import BlockTable, SequenceBound
from maple.engine.kv.blocks import BlockMemory, BlockPool, OutOfBlocks
from maple.engine.kv.cache import CacheHandle, CacheLimits, KvSnapshot, Wait
from maple.engine.kv.prefix_tree import SessionKey
from maple.engine.runner import SequenceSlice
from maple.native.kv import NativeCache
from maple.native.model import KV_BLOCK_TOKENS, NativeModel, StepSlice
from maple.native.outside import NativeBlocks
from maple.native.sessions import copied_in, copied_out

Row = npt.NDArray[np.float32] | None


class NativeRunner:
    """Runs all slices together; a sequence's rows are bit for bit those it gets alone.

    A step cannot be interrupted: a cancelled slice is left out only before it. Slices that the model's
    ``max_tokens`` cannot take together are run one call after another. ``budget`` bounds the bytes of all KV
    blocks in memory; by default the model's pools do.
    """

    def __init__(
        self,
        model: NativeModel,
        bound: SequenceBound,
        *,
        budget: int | None = None,
        limits: CacheLimits | None = None,
    ) -> None:
        full = BlockPool(model.kv_blocks, model.kv_block_bytes(sliding=False))
        sliding = BlockPool(model.sliding_kv_blocks, model.kv_block_bytes(sliding=True))
        if budget is None:
            budget = full.size * full.block_bytes + sliding.size * sliding.block_bytes
        self._model = model
        memory = BlockMemory(full, sliding, budget, self._discard)
        self._cache = NativeCache(memory, bound, limits or CacheLimits(), self._copy)

    @property
    def model(self) -> NativeModel:
        """The model."""
        return self._model

    @property
    def blocks(self) -> NativeBlocks:
        """Its blocks, for whoever keeps them elsewhere too."""
        return NativeBlocks(self._model, self._cache)

    @property
    def longest(self) -> int:
        """The longest sequence that fits into the memory, alone, in tokens."""
        return self._cache.longest

    @property
    def budget(self) -> int:
        """The most bytes that all KV blocks take."""
        return self._cache.memory.budget

    def bytes_for(self, tokens: int) -> int:
        """The most memory that a sequence of so many tokens takes."""
        return self._cache.bytes_for(tokens)

    @property
    def kv_bytes(self) -> int:
        """Memory of all blocks that sequences hold or that are kept."""
        return self._cache.memory.taken_bytes

    @property
    def kv_blocks(self) -> int:
        """Blocks of both kinds that sequences hold or that are kept."""
        return self._cache.memory.full.taken + self._cache.memory.sliding.taken

    @property
    def evictions(self) -> int:
        """Blocks' worth of kept prefixes that were dropped for room."""
        return self._cache.evictions

    @property
    def kv_format(self) -> str:
        """The layout of a block, and how its numbers were computed."""
        model, memory = self._model, self._cache.memory
        size = f"{memory.full.block_bytes}x{memory.sliding.block_bytes}"
        return f"maple-native-1/{model.path}/{model.activations}/{model.kv_dtype}/{KV_BLOCK_TOKENS}/{size}"

    def open(
        self, owner: str, prompt_ids: Sequence[int], longest: int = 0, *, reuse: bool = True
    ) -> CacheHandle[BlockTable] | Wait:
        """A table with all that is there of the prompt; further blocks are taken as it grows."""
        table = self._cache.open(owner, prompt_ids, longest, reuse=reuse)
        return table if isinstance(table, Wait) else CacheHandle(table, reused=table.length)

    def step(self, slices: Sequence[SequenceSlice]) -> list[Row]:
        """Run the slices; the rows are views of one array."""
        rows: list[Row] = [None] * len(slices)
        for group in self._groups(slices):
            self._run(slices, group, rows)
        return rows

    def reserve(self, cache: CacheHandle[BlockTable], length: int) -> bool:
        """Take the blocks for so many tokens; whether there is memory for them."""
        return self._cache.reserve(cache.store, length)

    def close(
        self, cache: CacheHandle[BlockTable], *, keep: bool = True, session: SessionKey | None = None
    ) -> None:
        """Give the blocks back, or keep them for reuse within the limits."""
        self._cache.close(cache.store, keep=keep, session=session)

    def resident(self, owner: str, ids: Sequence[int]) -> int:
        """How many of the first ids are there to go on from."""
        return self._cache.find(owner, ids).length

    def forget(self, owner: str, ids: Sequence[int]) -> None:
        """Drop what is kept of these ids and of no others."""
        self._cache.forget(owner, ids)

    @property
    def sessions(self) -> int:
        """Sessions of which something is kept."""
        return self._cache.sessions

    def session_ids(self, session: SessionKey) -> Sequence[int]:
        """The session's ids, as far as they are kept."""
        return self._cache.prefixes.session_ids(session)

    def forget_session(self, session: SessionKey, running: Sequence[CacheHandle[BlockTable]] = ()) -> bool:
        """Drop what the session alone has; ``running`` are its own sequences."""
        return self._cache.prefixes.forget_session(session, [one.store for one in running])

    def snapshot(self, owner: str, ids: Sequence[int]) -> KvSnapshot | None:
        """A copy of what is there of the ids; None where nothing is."""
        match = self._cache.find(owner, ids)
        if not match.length:
            return None
        arrays = copied_out(self._model, match)
        return KvSnapshot(ids=tuple(ids[: match.length]), kv_format=self.kv_format, arrays=arrays)

    def restore(self, owner: str, snapshot: KvSnapshot, session: SessionKey | None = None) -> int | Wait:
        """Keep a snapshot's blocks for reuse: how many of its ids are resident now. Raises SnapshotUnfit."""
        return copied_in(self._model, self._cache, owner, snapshot, session)

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
            self._cache.advance(one.cache.store, one.ids)
            if step.logits:
                found = logits[row : row + step.logits]
                rows[index] = found if one.every_row else found[0]
                row += step.logits

    def _prepare(self, one: SequenceSlice) -> StepSlice:
        table: BlockTable = one.cache.store
        if not self._cache.reserve(table, one.start + len(one.ids)):
            raise OutOfBlocks("a slice was run that was not reserved")
        return StepSlice(
            tokens=one.ids,
            start=one.start,
            blocks=table.blocks,
            sliding_blocks=table.sliding_blocks,
            logits=len(one.ids) if one.every_row else int(one.want_logits),
        )

    def _copy(self, sliding: bool, source: int, target: int) -> None:
        self._model.kv_block(target, sliding=sliding)[:] = self._model.kv_block(source, sliding=sliding)

    def _discard(self, sliding: bool, block: int) -> None:
        """Give the block's whole pages back to the system; they read as zeros from then on."""
        content = self._model.kv_block(block, sliding=sliding)
        begin = -(-content.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (content.ctypes.data + content.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > begin:
            _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


_LIBC = ctypes.CDLL(None, use_errno=True)
