"""Keys and values of one conversation, copied out of the native kernels' blocks and in again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from maple.engine.kv.cache import KvSnapshot, SnapshotUnfit, Wait
from maple.engine.kv.prefix_tree import BLOCK, Match, SessionKey
from maple.native.kv import NativeCache
from maple.native.model import NativeModel

Bytes = npt.NDArray[np.uint8]


def copied_out(model: NativeModel, match: Match) -> dict[str, npt.NDArray[np.generic]]:
    """``full`` [blocks, bytes]; ``sliding`` [n, bytes] with the block numbers of its rows in ``sliding_at`` [n]."""
    full = [node.full for node in match.nodes]
    sliding = [node.sliding for node in match.nodes]
    if match.copied:
        full.append(match.full)
        sliding.append(match.sliding)
    there = [index for index, block in enumerate(sliding) if block != -1]
    return {
        "full": _stacked(model, full, sliding=False),
        "sliding": _stacked(model, [sliding[index] for index in there], sliding=True),
        "sliding_at": np.array(there, np.int32),
    }


def copied_in(
    model: NativeModel, cache: NativeCache, owner: str, snapshot: KvSnapshot, session: SessionKey | None
) -> int | Wait:
    """Put a snapshot's blocks into the tree, as the session's: how many of its ids are resident then.

    MEMORY where running sequences leave no room. Raises SnapshotUnfit where it is not of this model's shape.
    """
    full, sliding = _checked(model, snapshot)
    ids = snapshot.ids
    table = cache.open_at(owner, ids)
    if table is None:
        return Wait.MEMORY
    try:
        for index in range(full.shape[0]):
            cache.take_block(table, with_sliding=index in sliding)
            model.kv_block(table.blocks[index], sliding=False)[:] = full[index]
            if index in sliding:
                model.kv_block(table.sliding_blocks[index], sliding=True)[:] = sliding[index]
            cache.advance(table, ids[index * BLOCK : (index + 1) * BLOCK])
    finally:
        cache.close(table, keep=True, session=session)
    return cache.find(owner, ids).length


def _stacked(model: NativeModel, blocks: list[int], *, sliding: bool) -> Bytes:
    size = model.kv_block_bytes(sliding=sliding)
    rows = np.empty((len(blocks), size), np.uint8)
    if size:
        for row, block in zip(rows, blocks, strict=True):
            row[:] = model.kv_block(block, sliding=sliding)
    return rows


def _checked(model: NativeModel, snapshot: KvSnapshot) -> tuple[Bytes, Mapping[int, Bytes]]:
    """The full blocks, and the sliding ones by number."""
    blocks = -(-len(snapshot.ids) // BLOCK)
    try:
        full, sliding = snapshot.arrays["full"], snapshot.arrays["sliding"]
        at = [int(index) for index in snapshot.arrays["sliding_at"]]
    except (KeyError, TypeError) as error:
        raise SnapshotUnfit("blocks are missing") from error
    rows = (
        (full, (blocks, model.kv_block_bytes(sliding=False))),
        (sliding, (len(at), model.kv_block_bytes(sliding=True))),
    )
    if any(array.dtype != np.uint8 or array.shape != shape for array, shape in rows):
        raise SnapshotUnfit("blocks have another shape")
    if any(not 0 <= index < blocks for index in at):
        raise SnapshotUnfit("a block lies outside the sequence")
    if any(not 0 <= token < model.shape.vocabulary for token in snapshot.ids):
        raise SnapshotUnfit("an id lies outside the vocabulary")
    return full.view(np.uint8), dict(zip(at, sliding.view(np.uint8), strict=True))
