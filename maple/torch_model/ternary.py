"""Rows that hold only -a, 0 and +a: verified, packed to two bits a weight, and multiplied.

The layout of the packed bytes is known here and nowhere else: other modules see a ``TernaryTensor`` and its
methods. Codes are ``sign + 1``, four to a byte, the weight of the lowest index in the lowest bits. Sixteen of
them are the little-endian 32-bit word of the MLX export, so that those files are used as they lie on the
disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import attrs
import torch
from torch import nn

LAYOUT = "rows4"
"""Name of this layout, recorded with whatever is stored in it."""

CODES_PER_BYTE = 4
_PACK_BLOCK = 1 << 19  # weights handled at a time, so that the scratch stays in cache
_SCAN_BLOCK = 1 << 22
_INFINITY = 0x7F80  # bf16 bit pattern; a magnitude from here up is infinite or NaN


class NotTernaryError(ValueError):
    """A row holds two different magnitudes; ``row`` is its index over all leading dimensions."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} is not ternary")
        self.row = row


class NonFiniteWeightError(ValueError):
    """A weight is NaN or infinite."""


@attrs.frozen(eq=False)
class TernaryTensor:
    """A stack of ternary matrices, w[..., r, k] = alpha[..., r] * sign[..., r, k].

    codes: uint8 [..., out, in / 4] in the layout of this module, contiguous in its last dimension;
    alpha: floating [..., out], as stored in the checkpoint.
    """

    codes: torch.Tensor
    alpha: torch.Tensor

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> TernaryTensor:
        """Room for a tensor of dense shape [..., out, in], to be filled by ``__setitem__``."""
        codes = torch.empty((*shape[:-1], shape[-1] // CODES_PER_BYTE), dtype=torch.uint8)
        return cls(codes, torch.empty(shape[:-1], dtype=torch.bfloat16))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense tensor, [..., out, in]."""
        return (*self.codes.shape[:-1], self.codes.shape[-1] * CODES_PER_BYTE)

    @property
    def nbytes(self) -> int:
        """Bytes held by codes and scales."""
        return self.codes.nbytes + self.alpha.nbytes

    def __getitem__(self, index: int | slice) -> TernaryTensor:
        """Part of the leading dimension, as a view."""
        return TernaryTensor(self.codes[index], self.alpha[index])

    def __setitem__(self, index: int, part: TernaryTensor) -> None:
        self.codes[index] = part.codes
        self.alpha[index] = part.alpha

    def to(self, device: torch.device | str) -> TernaryTensor:
        """The same tensor on ``device``."""
        return TernaryTensor(self.codes.to(device), self.alpha.to(device))

    def linear(self, x: torch.Tensor) -> torch.Tensor:
        """``x [..., in]`` times this matrix [out, in], transposed, in fp32.

        It is multiplied in fp32 everywhere: next to the unpacking that costs little.
        """
        planes = x.float().unflatten(-1, (-1, CODES_PER_BYTE)).transpose(-1, -2).flatten(-2)
        product = nn.functional.linear(planes, _signs_by_plane(self.codes).float())
        return product.mul_(self.alpha.float())

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The dense tensor [..., out, in]; exact when ``dtype`` holds alpha exactly."""
        signs = _signs_by_plane(self.codes).unflatten(-1, (CODES_PER_BYTE, -1)).transpose(-1, -2).flatten(-2)
        wide: torch.Tensor = signs.to(dtype)
        return wide.mul_(self.alpha.to(dtype).unsqueeze(-1))


def _signs_by_plane(codes: torch.Tensor) -> torch.Tensor:
    """Signs [..., out, in] as int8, ordered by position within the byte first: k = 0, 4, 8, …, then 1, 5, 9,
    …

    Undoing the byte order costs more than the whole unpacking; permuting the activations instead costs
    nothing.
    """
    width = codes.shape[-1]
    planes = torch.empty((*codes.shape[:-1], CODES_PER_BYTE * width), dtype=torch.uint8, device=codes.device)
    for p in range(CODES_PER_BYTE):
        plane = planes[..., p * width : (p + 1) * width]
        torch.bitwise_right_shift(codes, 2 * p, out=plane)
    return planes.bitwise_and_(3).view(torch.int8).sub_(1)


def pack(weight: torch.Tensor) -> TernaryTensor:
    """Pack a dense [..., out, in] tensor of bf16 values without loss.

    Raises ``NotTernaryError`` for a row with two magnitudes or with a magnitude that bf16 cannot hold, and
    ``NonFiniteWeightError``. A row of zeros is ternary with alpha 0, and -0.0 is a zero.
    """
    rows = weight.reshape(-1, weight.shape[-1])
    packed = TernaryTensor.empty(tuple(rows.shape))
    for start, stop in _blocks(rows.shape[0], rows.shape[1], _PACK_BLOCK):
        _pack_block(rows[start:stop], packed[start:stop], start)
    leading = weight.shape[:-1]
    return TernaryTensor(packed.codes.view(*leading, -1), packed.alpha.view(leading))


def _pack_block(rows: torch.Tensor, into: TernaryTensor, first: int) -> None:
    bits = _bf16(rows, first).view(torch.int16)
    magnitude = bits & 0x7FFF  # of finite bf16 values the magnitudes sort like their bit patterns
    largest = magnitude.amax(-1, keepdim=True)
    if int(largest.max()) >= _INFINITY:
        raise NonFiniteWeightError
    zero = magnitude == 0
    odd = ((magnitude != largest) & ~zero).any(-1)
    if bool(odd.any()):
        raise NotTernaryError(first + int(odd.nonzero()[0]))
    signs = (bits >= 0).view(torch.uint8).mul_(2).masked_fill_(zero, 1)
    # Four codes lie in the bytes of one word; shifted together they leave the packed byte at the bottom.
    word = signs.view(torch.int32)
    into.codes.copy_((word | word >> 6 | word >> 12 | word >> 18).bitwise_and_(0xFF))
    into.alpha.copy_(largest.squeeze(-1).view(torch.bfloat16))


def _bf16(rows: torch.Tensor, first: int) -> torch.Tensor:
    if rows.dtype == torch.bfloat16:
        return rows.contiguous()
    rounded = rows.to(torch.bfloat16)
    odd = (rounded.to(rows.dtype) != rows).any(-1)
    if not bool(rows.isfinite().all()):
        raise NonFiniteWeightError
    if bool(odd.any()):
        raise NotTernaryError(first + int(odd.nonzero()[0]))
    return rounded.contiguous()


def from_words(words: torch.Tensor, alpha: torch.Tensor) -> TernaryTensor:
    """View 32-bit words [..., out, in / 16] of two-bit codes, lowest first, as a ``TernaryTensor``."""
    if sys.byteorder != "little":  # pragma: no cover - no such machine runs torch wheels
        raise NotImplementedError("2-bit checkpoints are little-endian")
    return TernaryTensor(words.view(torch.uint8), alpha)


def check_codes(tensor: TernaryTensor) -> int | None:
    """The first row, counted over all leading dimensions, that holds the unused code 3, or None."""
    rows = tensor.codes.reshape(-1, tensor.codes.shape[-1])
    for start, stop in _blocks(rows.shape[0], rows.shape[1] * CODES_PER_BYTE, _SCAN_BLOCK):
        block = rows[start:stop]
        bad = block & (block >> 1) & 0x55
        if bool(bad.any()):
            return start + int(bad.any(-1).nonzero()[0])
    return None


def _blocks(rows: int, width: int, weights: int) -> Iterator[tuple[int, int]]:
    step = max(1, weights // width)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)
