"""The numbers of a tensor: whether they are finite, and floats of three dtypes in one form.

bf16 stands as its bits in uint16, since numpy has no such numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from maple.checkpoint.errors import LoadError
from maple.checkpoint.shards import Array, TensorInfo

_BLOCK = 1 << 22
_BITS: Mapping[str, tuple[npt.DTypeLike, int]] = {
    "BF16": (np.uint16, 0x7F80),
    "F16": (np.uint16, 0x7C00),
    "F32": (np.uint32, 0x7F800000),
}
"""The bits of each float dtype, and those of its exponent: all of them set means NaN or infinity."""


def require_finite(info: TensorInfo, numbers: Array) -> None:
    """Raise ``LoadError`` naming the tensor if one of its numbers is NaN or infinite."""
    dtype, exponent = _BITS[info.dtype]
    flat = numbers.view(dtype).reshape(-1)
    for begin in range(0, flat.size, _BLOCK):  # a mask of a whole table would take half its size again
        if ((flat[begin : begin + _BLOCK] & exponent) == exponent).any():
            raise LoadError(f"tensor {info.name} holds NaN or infinity")


def as_float32(info: TensorInfo, numbers: Array) -> npt.NDArray[np.float32]:
    """The same numbers; float32 holds all of them exactly."""
    if info.dtype == "BF16":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return np.require(numbers, np.float32, ["A"])  # a file may leave them unaligned


def as_bf16(info: TensorInfo, numbers: Array) -> npt.NDArray[np.uint16] | None:
    """The same numbers as bits of bf16, or None where one of them is none that bf16 holds exactly."""
    if info.dtype == "BF16":
        return numbers
    bits = as_float32(info, numbers).view(np.uint32)
    return None if (bits & 0xFFFF).any() else (bits >> 16).astype(np.uint16)
