"""Which ids have a token, and masks of them: a bit an id in uint32 words."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.uint32]


@attrs.frozen(eq=False)
class Allowed:
    """The ids that have a token: those below ``limit``, except ``holes``; ``mask`` has a bit an id, or is None."""

    limit: int
    holes: Ids
    mask: npt.NDArray[np.uint32] | None

    @classmethod
    def from_ids(cls, ids: Ids) -> Allowed:
        """From all ids that have a token, ascending; there must be one."""
        limit = int(ids[-1]) + 1
        holes = np.setdiff1d(np.arange(limit), ids)
        bits = np.zeros(-(-limit // 32) * 32, np.uint8)
        bits[ids] = 1
        packed = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
        return cls(limit, holes, packed if holes.size else None)

    def without(self, ids: Iterable[int]) -> Mask:
        """A mask of these ids but for some."""
        words = -(-self.limit // 32)
        mask = np.full(words, 0xFFFFFFFF, np.uint32) if self.mask is None else self.mask.copy()
        mask[-1] &= np.uint32(0xFFFFFFFF >> (words * 32 - self.limit))
        for token in ids:
            if 0 <= token < self.limit:
                mask[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
        return mask
