"""The versions of a pack: of its files and names, and of the bytes in its matrices."""

from __future__ import annotations

import functools
import hashlib

import numpy as np

from maple.native.packing import (
    BLOCK_ROWS,
    GROUP,
    Kind,
    PackedMatrix,
    Place,
    pack_affine4,
    pack_dense,
    pack_ternary,
)

FORMAT = 3
"""Version of a pack's files, names and numbers; ``fingerprint`` covers the layout of its matrices.

1 took scales that were stored in float16 for bf16, so its packs may hold wrong weights; since 3 a 4-bit head
lies in blocks of rows and is not rounded.
"""


@functools.cache
def fingerprint() -> str:
    """A hash over small matrices packed in every kind: it changes whenever the layout of any does."""
    rows, cols = 2 * BLOCK_ROWS + 8, 3 * GROUP
    place = np.arange(rows * cols)
    bits = np.where(place % 3 == 0, 0, 0x3F80 | (place % 2) << 15).astype(np.uint16)
    dense = (0x3F80 | place % 128).astype(np.uint16)
    words = np.arange(rows * cols // 8, dtype=np.uint32) * np.uint32(0x9E3779B1)
    scales = dense[: rows * cols // GROUP]
    ternary = PackedMatrix.empty(Kind.TERNARY, rows, cols)
    pack_ternary(bits, (1, rows, cols), Place(into=ternary))
    packed = [ternary, pack_affine4(words, scales, scales, (rows, cols))]
    packed += [pack_dense(dense, (rows, cols), kind) for kind in (Kind.INT8, Kind.BF16, Kind.F32)]
    digest = hashlib.sha256()
    for matrix in packed:
        digest.update(matrix.data.data)
    return digest.hexdigest()[:16]
