"""Sums, cuts and draws over weights in double, in one order of operations, which sampling.cpp follows too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_BLOCK, _LANES, _BINS, _FEW = 256, 4, 2048, 64
_REACH = 40.0  # in temperatures below the highest: e^-40 of its weight is nothing
_ROUND = 1.5 * 2.0**52  # adding it rounds to a whole number
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_FACTORIALS = (39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6)


def exponentials(x: Doubles) -> Doubles:
    """e^x of numbers ≤ 0 to about 1e-13; 0 below −700. No library's, since no two round alike."""
    at = np.where(x > -700.0, x, -700.0)
    k = (at * 1.4426950408889634 + _ROUND) - _ROUND
    r = (at - k * _LN2_HIGH) - k * _LN2_LOW
    p = np.full_like(r, 1.0 / _FACTORIALS[0])
    for coefficient in (*(1.0 / n for n in _FACTORIALS[1:]), 0.5, 1.0, 1.0):
        p *= r
        p += coefficient
    scale = ((k + (_ROUND + 1023.0)).view(np.uint64) << np.uint64(52)).view(np.float64)
    return np.where(x > -700.0, p * scale, 0.0)


def total(weights: Doubles) -> float:
    """The sum: of blocks of 256 in order, each of four lanes."""
    return float(np.cumsum(_block_sums(weights))[-1])


def draw(weights: Doubles, fraction: float) -> int:
    """The index that ``fraction`` in [0, 1) of the sum falls into; never one of no weight."""
    reached = np.cumsum(_block_sums(weights))
    target = fraction * reached[-1]
    block = min(int(np.searchsorted(reached[:-1], target, side="right")), len(reached) - 1)
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK]
    start = reached[block - 1] if block else 0.0
    beyond = np.flatnonzero((np.cumsum(np.concatenate(([start], inside)))[1:] > target) & (inside > 0))
    if beyond.size:
        return int(block * _BLOCK + beyond[0])
    return int(np.flatnonzero(weights[: (block + 1) * _BLOCK])[-1])


def cut_after(scores: Doubles, weights: Doubles, highest: float, temperature: float, wanted: float) -> None:
    """Set the weights to 0 of all that come after the first, best first and of equals the lower index, to reach
    ``wanted``.

    The place is looked for in bins of scores, and in bins of the bin that it lies in, until few are left to sort.
    """
    inside = np.arange(len(scores))
    high, low, reached, first = highest, highest - _REACH * temperature, 0.0, True
    while first or (len(inside) > _FEW and high != low):
        scale = (_BINS - 1) / (high - low) if high > low else 1e300
        with np.errstate(over="ignore"):
            bins = np.minimum((high - scores[inside]) * scale, _BINS - 1).astype(np.int64)
        sums = _bin_sums(bins, weights[inside])
        sums[0] += reached
        before = np.cumsum(sums)
        found = np.flatnonzero(before[:-1] >= wanted)
        bin_ = int(found[0]) if found.size else _BINS - 1
        if first and bin_ == _BINS - 1:
            return  # only what weighs nothing could be cut
        reached = float(before[bin_ - 1]) if bin_ else reached
        inside, first = inside[bins == bin_], False
        if not inside.size:
            return
        high, low = float(scores[inside].max()), float(scores[inside].min())
    inside = inside[np.argsort(-scores[inside], kind="stable")]
    before = np.cumsum(np.concatenate(([reached], weights[inside])))[1:]
    last = inside[min(int(np.searchsorted(before, wanted)), len(inside) - 1)]
    edge = scores[last]
    weights[(scores < edge) | ((scores == edge) & (np.arange(len(scores)) > last))] = 0


def _block_sums(weights: Doubles) -> Doubles:
    padded = np.zeros(-(-len(weights) // _BLOCK) * _BLOCK)
    padded[: len(weights)] = weights
    steps = padded.reshape(-1, _BLOCK // _LANES, _LANES)
    lanes = np.zeros((len(steps), _LANES))
    for step in range(_BLOCK // _LANES):
        lanes += steps[:, step]
    return (lanes[:, 0] + lanes[:, 1]) + (lanes[:, 2] + lanes[:, 3])


def _bin_sums(bins: npt.NDArray[np.int64], weights: Doubles) -> Doubles:
    lanes = np.arange(len(bins)) % _LANES
    sums = np.bincount(lanes * _BINS + bins, weights, _LANES * _BINS).reshape(_LANES, _BINS)
    found: Doubles = (sums[0] + sums[1]) + (sums[2] + sums[3])
    return found
