"""Packing: exact for what is ternary, and a named row for what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from maple.native.library import KernelError
from maple.native.packing import (
    Kind,
    PackedMatrix,
    Place,
    aligned_bytes,
    matrix_bytes,
    pack_affine4,
    pack_codes2,
    pack_dense,
    pack_ternary,
)


def rows_of(rows: int, cols: int, seed: int = 0) -> tuple[Any, Any]:
    """Random bf16 bits of exactly ternary rows, some zeros negative, and their values."""
    rng = np.random.default_rng(seed)
    sign = rng.integers(-1, 2, (rows, cols))
    alpha = (rng.uniform(0.01, 4, rows).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    bits = np.where(
        sign == 0, rng.integers(0, 2, (rows, cols)) * 0x8000, alpha[:, None] | (sign < 0) * 0x8000
    )
    bits = bits.astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (16, 16), (17, 33), (50, 96), (64, 2048)])
def test_ternary_rows_come_back_exactly(rows: int, cols: int, linear: Any, paths: Any) -> None:
    """Multiplying the packed rows with the unit vectors gives each weight back exactly, -0.0 as a zero."""
    bits, values = rows_of(rows, cols)
    packed = PackedMatrix.empty(Kind.TERNARY, rows, cols)
    pack_ternary(bits, (1, rows, cols), Place(into=packed), threads=2)
    for path in paths:
        assert np.array_equal(linear(packed, np.eye(cols, dtype=np.float32), "fp32", path).T, values)


@pytest.mark.parametrize("bad", [0x3F80, 0x7FC0, 0x7F80, 0x0001])
def test_a_row_that_is_not_ternary_is_named(bad: int) -> None:
    """A second magnitude, NaN, infinity or a stray subnormal in row 37 is an error that says 37."""
    bits, _ = rows_of(64, 128)
    bits[37, 5] = bad
    packed = PackedMatrix.empty(Kind.TERNARY, 64, 128)
    with pytest.raises(KernelError, match="row 37"):
        pack_ternary(bits, (1, 64, 128), Place(into=packed), threads=2)


def test_a_two_bit_code_of_three_is_refused() -> None:
    """Code 3 stands for no weight."""
    words = np.full((32, 2), 0x55555555, np.uint32)
    words[20, 1] |= 2
    packed = PackedMatrix.empty(Kind.TERNARY, 32, 32)
    with pytest.raises(KernelError, match="row 20"):
        pack_codes2(words, np.full(32, 0x3F80, np.uint16), (1, 32, 32), Place(into=packed))


def test_two_spellings_pack_to_the_same_bytes() -> None:
    """bf16 rows and 2-bit words of the same weights are one packed matrix, from unaligned buffers too."""
    bits, values = rows_of(48, 64)
    codes = (np.sign(values) + 1).astype(np.uint32)
    words = (codes.reshape(48, 4, 16) << (2 * np.arange(16, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    alpha = (bits & 0x7FFF).max(1)
    odd = np.empty(words.nbytes + 1, np.uint8)
    odd[1:] = words.view(np.uint8).reshape(-1)
    one, two = (PackedMatrix.empty(Kind.TERNARY, 48, 64) for _ in range(2))
    pack_ternary(bits, (1, 48, 64), Place(into=one))
    pack_codes2(odd[1:], alpha, (1, 48, 64), Place(into=two))
    assert np.array_equal(one.data, two.data)


def test_places_interleave_gate_and_up(linear: Any) -> None:
    """Two sources written every other block are read back as alternating blocks of 16 rows."""
    gate, gate_values = rows_of(32, 64, 1)
    up, up_values = rows_of(32, 64, 2)
    packed = PackedMatrix.empty(Kind.TERNARY, 64, 64)
    pack_ternary(gate, (1, 32, 64), Place(into=packed, first=0, step=2))
    pack_ternary(up, (1, 32, 64), Place(into=packed, first=1, step=2))
    rows = linear(packed, np.eye(64, dtype=np.float32), "fp32", "scalar").T
    assert np.array_equal(rows.reshape(2, 2, 16, 64)[:, 0].reshape(32, 64), gate_values)
    assert np.array_equal(rows.reshape(2, 2, 16, 64)[:, 1].reshape(32, 64), up_values)


def test_a_source_too_large_for_its_place_is_refused() -> None:
    """Blocks never land outside the destination."""
    bits, _ = rows_of(64, 64)
    packed = PackedMatrix.empty(Kind.TERNARY, 48, 64)
    with pytest.raises(KernelError, match="too small"):
        pack_ternary(bits, (1, 64, 64), Place(into=packed))
    with pytest.raises(KernelError, match="bytes"):
        pack_ternary(bits[:5], (1, 64, 64), Place(into=packed))


def test_buffers_are_checked() -> None:
    """Size, dtype and alignment of packed bytes, before any of them reaches the kernels."""
    size = matrix_bytes(Kind.TERNARY, 16, 64)
    with pytest.raises(KernelError, match="bytes"):
        PackedMatrix(kind=Kind.TERNARY, rows=16, cols=64, data=aligned_bytes(size - 1))
    with pytest.raises(KernelError, match="aligned"):
        PackedMatrix(kind=Kind.TERNARY, rows=16, cols=64, data=aligned_bytes(size + 8)[8:])
    with pytest.raises(KernelError, match="run of bytes"):
        PackedMatrix(kind=Kind.TERNARY, rows=16, cols=64, data=aligned_bytes(2 * size)[::2])


def test_weights_that_are_not_finite_are_refused() -> None:
    """A head row with NaN, or a scale of infinity, is named."""
    rows = np.zeros((20, 64), np.uint16)
    rows[7, 3] = 0x7FC0
    for kind in (Kind.INT8, Kind.BF16, Kind.F32):
        with pytest.raises(KernelError, match="row 7"):
            pack_dense(rows, (20, 64), kind)
    scales = np.zeros((20, 1), np.uint16)
    scales[9] = 0x7F80
    with pytest.raises(KernelError, match="row 9"):
        pack_affine4(np.zeros((20, 8), np.uint32), scales, np.zeros((20, 1), np.uint16), (20, 64))
