"""Run by test_kernel_sanitizers.py in a process of its own: argv is the sanitized library and the models' folders."""

from __future__ import annotations

import ctypes
import pathlib
import sys

import numpy as np
import numpy.typing as npt

from maple.native import library as _library
from maple.native import packing
from maple.native.model import NativeModel, StepSlice
from maple.native.packing import Kind, PackedMatrix, Place, pack_affine4, pack_codes2, pack_dense
from maple.native.weights import NativeSource, load_weights

LIBRARY = _library.open_library(pathlib.Path(sys.argv[1]))
LIBC = ctypes.CDLL(None)
LIBC.aligned_alloc.restype = ctypes.c_void_p
LIBC.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]


def guarded_bytes(size: int) -> npt.NDArray[np.uint8]:
    """Exactly ``size`` bytes from the sanitizer's allocator, so that one byte beyond them is an error."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(LIBC.aligned_alloc(64, size)))


def run_products(paths: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    for rows, cols in ((17, 48), (33, 192), (16, 64), (288, 400)):
        ternary = PackedMatrix.empty(Kind.TERNARY, rows, cols)
        words = np.full((rows, cols // 16), 0x55555555, np.uint32)
        pack_codes2(words, np.full(rows, 0x3F80, np.uint16), (1, rows, cols), Place(into=ternary), threads=2)
        dense = rng.integers(0, 0x3F80, (rows, cols), np.uint16)
        matrices = [
            ternary,
            *(pack_dense(dense, (rows, cols), kind) for kind in (Kind.INT8, Kind.BF16, Kind.F32)),
        ]
        if cols % 64 == 0:
            group = np.full((rows, cols // 64), 0x3C00, np.uint16)
            codes = rng.integers(0, 1 << 32, (rows, cols // 8), np.uint32)
            matrices.append(pack_affine4(codes, group, group, (rows, cols)))
        for matrix in matrices:
            given = matrix.as_struct()
            for count in (1, 2, 3, 4, 5, 7, 8, 9, 97):
                x = rng.standard_normal((count, cols)).astype(np.float32)
                y = np.empty((count, rows), np.float32)
                for path in paths:
                    for mode in range(3):
                        _library.call(
                            LIBRARY.maple_linear, ctypes.byref(given), x.ctypes.data, count, y.ctypes.data, mode,
                            _library.PATHS.index(path),
                        )  # fmt: skip


def run_model(folder: pathlib.Path, paths: tuple[str, ...]) -> None:
    source = NativeSource(source=str(folder), threads=2)
    loaded = load_weights(source, progress=lambda _: None, cancelled=lambda: False)
    rng = np.random.default_rng(1)
    for path in paths:
        for mode, kv in (("int8x2", "f16"), ("int8", "int8"), ("fp32", "f32"), ("int8x2", "bf16")):
            options = {
                "threads": 3,
                "kv_blocks": 8,
                "max_tokens": 160,
                "activations": mode,
                "kv_dtype": kv,
                "path": path,
            }
            with NativeModel(loaded.shape, loaded.weights, **options) as model:  # type: ignore[arg-type]
                for start, count in ((0, 100), (100, 1), (101, 27)):
                    ids = [int(i) for i in rng.integers(0, 512, count)]
                    one = StepSlice(
                        tokens=ids, start=start, blocks=[5, 2], sliding_blocks=[7, 0], logits=min(count, 9)
                    )
                    two = StepSlice(tokens=[3], start=start, blocks=[4, 6], sliding_blocks=[1, 2])
                    model.step([one, two])


def main() -> None:
    _library.default_library = lambda: LIBRARY  # type: ignore[assignment]
    packing.aligned_bytes = guarded_bytes
    paths = _library.paths_of(LIBRARY)
    run_products(paths)
    for folder in sys.argv[2:]:
        run_model(pathlib.Path(folder), paths)


main()
