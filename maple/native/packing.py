"""Row-major weights to the kernels' layout, and what a packed matrix is.

The layout is described in src/kernel_table.h. Source buffers may be unaligned (the published files are);
packed buffers are 64-byte aligned. Every value is checked on the way: a row that is not what its kind
promises is a ``KernelError`` that names the row.
"""

from __future__ import annotations

import ctypes
import enum
import mmap
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from maple.native import library as _library
from maple.native.library import KernelError

Bytes: TypeAlias = npt.NDArray[np.uint8]

BLOCK_ROWS = 16
GROUP = 64


class Kind(enum.IntEnum):
    """How the weights of a packed matrix are held."""

    TERNARY = 0
    AFFINE4 = 1
    INT8 = 2
    BF16 = 3
    F32 = 4


def block_count(rows: int) -> int:
    """Blocks of 16 rows that hold ``rows``."""
    return -(-rows // BLOCK_ROWS)


def matrix_bytes(kind: Kind, rows: int, cols: int) -> int:
    """Bytes of one packed matrix of ``rows`` x ``cols``."""
    size = int(_library.default_library().maple_matrix_bytes(int(kind), rows, cols))
    if size < 0:
        raise KernelError(f"no packed form of {kind.name} {rows} x {cols}")
    return size


def aligned_bytes(size: int) -> Bytes:
    """Zeroed memory on a page boundary, in huge pages where the system gives them."""
    area = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= 1 << 22:
        area.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(area, np.uint8, size)


def _check_packed(instance: PackedMatrix, _: object, data: Bytes) -> None:
    wanted = matrix_bytes(instance.kind, instance.rows, instance.cols) * instance.count
    if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
        raise KernelError("packed weights must be one contiguous run of bytes")
    if data.size != wanted:
        shape = f"{instance.count} x {instance.rows} x {instance.cols}"
        raise KernelError(f"{instance.kind.name} {shape}: {data.size} bytes, not {wanted}")
    if data.ctypes.data % 64:
        raise KernelError("packed weights must be 64-byte aligned")


@attrs.frozen(kw_only=True, eq=False)
class PackedMatrix:
    """``count`` packed matrices of one shape in one buffer; keeps the buffer alive."""

    kind: Kind
    rows: int
    cols: int
    count: int = 1
    data: Bytes = attrs.field(validator=_check_packed, repr=False)

    @classmethod
    def empty(cls, kind: Kind, rows: int, cols: int, count: int = 1) -> PackedMatrix:
        """Room for packed weights, to be filled through ``Place``s."""
        return cls(
            kind=kind,
            rows=rows,
            cols=cols,
            count=count,
            data=aligned_bytes(matrix_bytes(kind, rows, cols) * count),
        )

    def as_struct(self) -> _library.Matrix:
        """The C view; valid while this object lives."""
        return _library.Matrix(
            self.data.ctypes.data, self.data.size, int(self.kind), self.rows, self.cols, self.count
        )


@attrs.frozen(kw_only=True)
class Place:
    """Where in a packed matrix a source's blocks go: from block ``first`` of matrix ``matrix`` on, every
    ``step``-th.
    """

    into: PackedMatrix
    first: int = 0
    step: int = 1
    matrix: int = 0

    def as_struct(self) -> _library.Target:
        """The C view; valid while ``into`` lives."""
        per_matrix = block_count(self.into.rows)
        offset = self.into.data.size // self.into.count * self.matrix
        return _library.Target(
            self.into.data.ctypes.data + offset,
            self.into.data.size - offset,
            self.first,
            self.step,
            per_matrix,
        )


def _pack(function: _library.Function, *arguments: object, place: Place, threads: int) -> None:
    target = place.as_struct()
    _library.call(function, *arguments, ctypes.byref(target), threads)


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise KernelError(message)


def _address(source: npt.NDArray[np.generic], size: int, what: str) -> int:
    _expect(source.flags.c_contiguous, f"{what} must be contiguous")
    _expect(source.nbytes == size, f"{what}: {source.nbytes} bytes where {size} were expected")
    return int(source.ctypes.data)


def pack_codes2(
    words: npt.NDArray[np.generic],
    alpha: npt.NDArray[np.generic],
    shape: tuple[int, int, int],
    place: Place,
    *,
    threads: int = 1,
) -> None:
    """Pack 2-bit words (16 codes each, lowest bits first, w = alpha (code - 1)) of ``shape`` [count, rows,
    cols].

    ``alpha`` holds bf16 bits, one a row.
    """
    count, rows, cols = shape
    _expect(
        place.into.kind is Kind.TERNARY and place.into.cols == cols,
        "2-bit words go into a ternary matrix of their width",
    )
    source = _address(words, count * rows * cols // 4, "2-bit words")
    scale = _address(alpha, count * rows * 2, "row scales")
    function = _library.default_library().maple_pack_codes2
    _pack(function, source, scale, count, rows, cols, place=place, threads=threads)


def pack_ternary(
    source: npt.NDArray[np.generic], shape: tuple[int, int, int], place: Place, *, threads: int = 1
) -> None:
    """Pack bf16 rows (bits as uint16) of ``shape`` [count, rows, cols] that hold -a, 0 and a; anything else is
    an error.
    """
    count, rows, cols = shape
    _expect(
        place.into.kind is Kind.TERNARY and place.into.cols == cols,
        "bf16 rows go into a ternary matrix of their width",
    )
    address = _address(source, count * rows * cols * 2, "bf16 rows")
    function = _library.default_library().maple_pack_ternary
    _pack(function, address, count, rows, cols, place=place, threads=threads)


def pack_affine4(
    words: npt.NDArray[np.generic],
    scales: npt.NDArray[np.generic],
    biases: npt.NDArray[np.generic],
    shape: tuple[int, int],
    *,
    threads: int = 1,
) -> PackedMatrix:
    """Pack affine 4-bit words (group 64, bf16 scales and biases) of ``shape`` [rows, cols], codes exactly as
    stored.
    """
    rows, cols = shape
    packed = PackedMatrix.empty(Kind.AFFINE4, rows, cols)
    source = _address(words, rows * cols // 2, "4-bit words")
    scale = _address(scales, rows * cols // GROUP * 2, "scales")
    bias = _address(biases, rows * cols // GROUP * 2, "biases")
    function = _library.default_library().maple_pack_affine4
    _pack(function, source, scale, bias, rows, cols, place=Place(into=packed), threads=threads)
    return packed


def pack_dense(
    source: npt.NDArray[np.generic], shape: tuple[int, int], kind: Kind, *, threads: int = 1
) -> PackedMatrix:
    """Pack bf16 rows (bits as uint16) as int8, bf16 or f32, or float32 rows as f32."""
    rows, cols = shape
    packed = PackedMatrix.empty(kind, rows, cols)
    single = source.dtype == np.float32
    address = _address(source, rows * cols * (4 if single else 2), "dense rows")
    function = _library.default_library().maple_pack_dense
    _pack(function, address, int(single), int(kind), rows, cols, place=Place(into=packed), threads=threads)
    return packed
