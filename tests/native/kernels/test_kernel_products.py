"""Matrix products of every path against float64, for all token counts, real and odd shapes and hostile
inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from maple.native.packing import Kind

MODES = ("fp32", "int8", "int8x2")
STEPS = {"int8": 127.0, "int8x2": 10879.0}
LIMBED = {Kind.TERNARY, Kind.INT8, Kind.AFFINE4}  # the others take fp32 activations in every mode


def bound(exact: Any, x: Any, mode: str, kind: Kind) -> Any:
    """The largest error allowed: half a quantisation step of x for each weight, and float32 sums."""
    weight = np.abs(exact).sum(1)
    rounding = np.abs(x) @ np.abs(exact).T * 2e-6 * np.sqrt(x.shape[1]) + 1e-6
    if mode == "fp32" or kind not in LIMBED:
        return rounding
    step = np.abs(x).max(1, keepdims=True) / STEPS[mode]
    return rounding + 0.505 * step * weight[None, :]


def check(sample: Any, linear: Callable[..., Any], x: Any, paths: tuple[str, ...], kind: Kind) -> None:
    wanted = x.astype(np.float64) @ sample.exact.T
    for path in paths:
        for mode in MODES:
            got = linear(sample.packed, x, mode, path)
            error = np.abs(got - wanted) - bound(sample.exact, x.astype(np.float64), mode, kind)
            assert error.max() <= 0, (path, mode, kind, error.max())


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64])
def test_products_match_float64(tokens: int, kind: Kind, sample_of: Any, linear: Any, paths: Any) -> None:
    """Each path and activation mode stays within half a quantisation step a weight."""
    sample = sample_of(kind, 48, 256)
    x = np.random.default_rng(tokens).standard_normal((tokens, 256)).astype(np.float32)
    check(sample, linear, x, paths, kind)


@pytest.mark.parametrize("tokens", range(1, 65))
def test_every_token_count_from_1_to_64(tokens: int, sample_of: Any, linear: Any, paths: Any) -> None:
    """Tiles and their remainders cover every number of tokens."""
    sample = sample_of(Kind.TERNARY, 80, 128)
    x = np.random.default_rng(tokens).standard_normal((tokens, 128)).astype(np.float32)
    check(sample, linear, x, paths, Kind.TERNARY)


@pytest.mark.parametrize(
    ("kind", "rows", "cols"),
    [
        (Kind.TERNARY, 3072, 2048),
        (Kind.TERNARY, 2048, 512),
        (Kind.TERNARY, 1, 16),
        (Kind.TERNARY, 17, 48),
        (Kind.TERNARY, 31, 96),
        (Kind.TERNARY, 100, 192),
        (Kind.AFFINE4, 300, 2048),
        (Kind.AFFINE4, 33, 192),
        (Kind.AFFINE4, 5, 64),
        (Kind.INT8, 65, 2048),
        (Kind.INT8, 19, 50),
        (Kind.BF16, 256, 2048),
        (Kind.BF16, 8, 33),
        (Kind.F32, 23, 77),
    ],
)
def test_real_and_odd_shapes(
    kind: Kind, rows: int, cols: int, sample_of: Any, linear: Any, paths: Any
) -> None:
    """The model's own shapes, and ones that fill no block, no word and no group."""
    sample = sample_of(kind, rows, cols)
    x = np.random.default_rng(rows).standard_normal((5, cols)).astype(np.float32)
    check(sample, linear, x, paths, kind)


def test_a_four_bit_weight_is_not_rounded_for_any_scale(every_scale: Any, linear: Any, paths: Any) -> None:
    """Taken out one by one, weights are scale * code + bias to float32, as in MLX's product with a vector."""
    one_by_one = np.eye(128, dtype=np.float32)
    largest = np.abs(every_scale.exact).max(1)
    for path in paths:
        for mode in MODES:
            got = linear(every_scale.packed, one_by_one, mode, path)
            assert np.all(np.abs(got.T - every_scale.exact) <= 1e-6 * largest[:, None]), (path, mode)


@pytest.mark.parametrize("kind", [Kind.TERNARY, Kind.INT8])
def test_an_extreme_outlier_costs_its_own_row_precision_only(
    kind: Kind, sample_of: Any, linear: Any, paths: Any
) -> None:
    """A value 10,000 times the rest coarsens its token's steps; its neighbours keep theirs."""
    sample = sample_of(kind, 48, 256)
    x = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    x[2, 17] = 1e4
    check(sample, linear, x, paths, kind)


@pytest.mark.parametrize("kind", list(Kind))
def test_zero_and_tiny_rows_give_zero(kind: Kind, sample_of: Any, linear: Any, paths: Any) -> None:
    """All zeros (of either sign) give exactly zero; values below 1e-30 are zero to the integer paths."""
    sample = sample_of(kind, 32, 128)
    x = np.zeros((3, 128), np.float32)
    x[1] = -0.0
    x[2] = 1e-36
    for path in paths:
        for mode in MODES:
            got = linear(sample.packed, x, mode, path)
            assert not got[:2].any()
            assert np.abs(got[2]).max() < 1e-30


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_poisons_its_own_row(
    poison: float, sample_of: Any, linear: Any, paths: Any
) -> None:
    """Integer paths answer NaN for the whole row, and every other row is bit for bit what it was."""
    sample = sample_of(Kind.TERNARY, 32, 128)
    x = np.random.default_rng(3).standard_normal((9, 128)).astype(np.float32)
    for path in paths:
        for mode in ("int8", "int8x2"):
            clean = linear(sample.packed, x, mode, path)
            spoiled = x.copy()
            spoiled[4, 100] = poison
            got = linear(sample.packed, spoiled, mode, path)
            assert np.isnan(got[4]).all()
            others = [0, 1, 2, 3, 5, 6, 7, 8]
            assert got[others].tobytes() == clean[others].tobytes()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_row_does_not_depend_on_its_neighbours(kind: Kind, sample_of: Any, linear: Any, paths: Any) -> None:
    """Bit for bit the same alone, among 64, and wherever it stands."""
    sample = sample_of(kind, 80, 256)
    x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    for path in paths:
        for mode in MODES:
            together = linear(sample.packed, x, mode, path)
            for first, count in ((0, 1), (5, 1), (63, 1), (7, 2), (20, 3), (40, 7)):
                alone = linear(sample.packed, x[first : first + count], mode, path)
                assert alone.tobytes() == together[first : first + count].tobytes(), (
                    path,
                    mode,
                    first,
                    count,
                )


@pytest.mark.parametrize("kind", list(Kind))
def test_all_paths_agree_bit_for_bit(kind: Kind, sample_of: Any, linear: Any, paths: Any) -> None:
    """Sums of integers are exact and floats are added in one order, so all instruction sets give one answer."""
    sample = sample_of(kind, 64, 512)
    x = np.random.default_rng(2).standard_normal((7, 512)).astype(np.float32)
    for mode in MODES:
        answers = {linear(sample.packed, x, mode, path).tobytes() for path in paths}
        assert len(answers) == 1
