"""The native kernels' blocks, for whoever keeps them outside of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from maple.engine.kv.outside import BlockObserver, Resident
from maple.engine.kv.prefix_tree import BLOCK
from maple.native.kv import NativeCache
from maple.native.model import NativeModel


class NativeBlocks:
    """A ``BlockSource`` over a model's pools and the tree that shares them."""

    def __init__(self, model: NativeModel, cache: NativeCache) -> None:
        self._model = model
        self._cache = cache

    @property
    def window(self) -> int:
        """What a token sees of a sliding layer, in tokens."""
        return self._model.shape.window

    def observe(self, observer: BlockObserver) -> None:
        """Tell this observer from now on."""
        self._cache.observe(observer)

    def block_bytes(self, *, sliding: bool) -> int:
        """Bytes of a block in one of the pools."""
        return self._model.kv_block_bytes(sliding=sliding)

    def copy(self, block: int, *, sliding: bool) -> bytes:
        """A block's bytes."""
        return self._model.kv_block(block, sliding=sliding).tobytes()

    def resident(self, owner: str, ids: Sequence[int]) -> Resident:
        """What is in the tree of the ids."""
        path = self._cache.path(owner, ids)
        sliding = frozenset(index for index, node in enumerate(path) if node.sliding != -1)
        return Resident(depth=len(path), sliding=sliding, usable=self._cache.find(owner, ids).length)

    def insert(
        self,
        owner: str,
        ids: Sequence[int],
        first: int,
        full: Sequence[memoryview],
        sliding: Mapping[int, memoryview],
    ) -> int:
        """Put blocks into the tree: how many of the ids' blocks are there then; 0 where nothing could be put."""
        table = self._cache.open_at(owner, ids[: (first + len(full)) * BLOCK], first)
        if table is None:
            return 0
        try:
            for index, content in enumerate(full, first):
                self._cache.take_block(table, with_sliding=index in sliding)
                self._fill(table.blocks[index], content, sliding=False)
                if index in sliding:
                    self._fill(table.sliding_blocks[index], sliding[index], sliding=True)
                self._cache.advance(table, ids[index * BLOCK : (index + 1) * BLOCK])
        finally:
            self._cache.close(table, keep=True)
        return len(self._cache.path(owner, ids))

    def _fill(self, block: int, content: memoryview, *, sliding: bool) -> None:
        self._model.kv_block(block, sliding=sliding)[:] = np.frombuffer(content, np.uint8)
