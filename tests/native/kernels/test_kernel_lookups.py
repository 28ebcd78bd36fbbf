"""Products by lookup (AVX-512 VBMI, AVX-VNNI, AVX2) are those of the dot products, bit for bit."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from maple.native.library import KernelInfo, available
from maple.native.model import NativeModel
from maple.native.packing import Kind
from maple.native.weights import NativeSource, NativeWeights, load_weights

DOTS = {"avx512vbmi": "avx512", "avxvnni": "scalar", "avx2": "scalar"}  # by the path that looks up
LARGEST = 10879  # integer of two limbs: kTwoLimbSteps

INFO = available()
LOOKUPS = [path for path in DOTS if isinstance(INFO, KernelInfo) and path in INFO.paths]
pytestmark = [
    pytest.mark.skipif(not LOOKUPS, reason="needs a processor with AVX2"),
    pytest.mark.parametrize("path", LOOKUPS),
]

Singles = npt.NDArray[np.float32]

# Blocks that fill a panel, a part of one and more than two; and an odd number, which is left to the dots.
ROWS = (256, 272, 288, 1024, 1056, 2080)
# One column group, parts of one, several passes with and without a remainder.
COLS = (16, 32, 48, 64, 96, 384, 400, 416, 768, 2048)


@pytest.fixture(scope="module")
def wide(wide_folder: pathlib.Path) -> NativeWeights:
    """The weights of a model whose every matrix is long enough for lookups."""
    source = NativeSource(source=str(wide_folder))
    return load_weights(source, progress=lambda part: None, cancelled=lambda: False)


def same_bits(sample: Any, linear: Callable[..., Singles], x: Singles, path: str) -> bool:
    one, two = (linear(sample.packed, x, "int8x2", each) for each in (path, DOTS[path]))
    return one.tobytes() == two.tobytes()


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("rows", ROWS)
def test_shapes(path: str, rows: int, cols: int, sample_of: Any, linear: Any) -> None:
    """Every number of blocks, passes and left columns gives the bits of the dots."""
    x = np.random.default_rng(rows + cols).standard_normal((13, cols)).astype(np.float32)
    assert same_bits(sample_of(Kind.TERNARY, rows, cols), linear, x, path)


@pytest.mark.parametrize("tokens", [*range(1, 35), 63, 64, 65, 100])
def test_token_counts(path: str, tokens: int, sample_of: Any, linear: Any) -> None:
    """So does every size of tile, and more tokens than share their passes."""
    x = np.random.default_rng(tokens).standard_normal((tokens, 400)).astype(np.float32)
    assert same_bits(sample_of(Kind.TERNARY, 288, 400), linear, x, path)


@pytest.mark.parametrize("cols", [48, 400, 2048])
def test_the_largest_sums_fit(path: str, cols: int, sample_of: Any, linear: Any) -> None:
    """Where all values are as large as one can be, with any signs, three still add up within 16 bits."""
    rng = np.random.default_rng(cols)
    signs = rng.choice([-1.0, 1.0], (12, cols)).astype(np.float32)
    signs[0], signs[1] = 1.0, -1.0
    sample = sample_of(Kind.TERNARY, 1024, cols)
    assert same_bits(sample, linear, signs, path)
    wanted = signs.astype(np.float64) @ sample.exact.T
    got = linear(sample.packed, signs * np.float32(LARGEST), "int8x2", path) / LARGEST
    assert np.abs(got - wanted).max() <= 1e-6 * np.abs(sample.exact).sum(1).max()


def test_not_finite_inputs_poison_their_own_row(path: str, sample_of: Any, linear: Any) -> None:
    """A NaN or an infinity makes its token's products NaN; the other tokens of its tile keep their bits."""
    sample = sample_of(Kind.TERNARY, 256, 96)
    x = np.random.default_rng(0).standard_normal((7, 96)).astype(np.float32)
    clean = linear(sample.packed, x, "int8x2", path)
    x[2, 5], x[4, 95] = np.nan, np.inf
    got = linear(sample.packed, x, "int8x2", path)
    poisoned = np.isin(np.arange(7), (2, 4))
    assert np.isnan(got[poisoned]).all()
    assert got[~poisoned].tobytes() == clean[~poisoned].tobytes()


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("sizes", [(150,), (16, 134), (1, 2, 3, 40, 70, 34), (5,) * 30])
def test_a_whole_model_in_any_chunks(
    path: str, sizes: tuple[int, ...], threads: int, wide: NativeWeights, sequences: Any
) -> None:
    """Attention, experts and head by lookup: the bits of the dots' single step, however the prompt is cut."""
    prompt = [int(token) for token in np.random.default_rng(7).integers(0, 512, 150)]

    def logits(path: str, sizes: tuple[int, ...]) -> bytes:
        (conversation,) = sequences(1)
        rows, at = [], 0
        with NativeModel(
            wide.shape, wide.weights, threads=threads, kv_blocks=64, max_tokens=160, path=path
        ) as model:
            for size in sizes:
                rows.append(model.step([conversation.slice(prompt[at : at + size], size)]))
                at += size
        return np.concatenate(rows).tobytes()

    assert logits(path, sizes) == logits(DOTS[path], (150,))
