"""How the next id is chosen from logits: Transformers' rules in their order, fast for a large vocabulary.

Repetition penalty, temperature, top-k, top-p, draw. All of it in numpy on the engine's thread; nothing global
is read or changed, so a sequence's ids depend on its own logits and seed alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from maple.engine.api import Sampling

__all__ = ["Allowed", "BadLogitsError", "Sampler"]

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]

_ROWS = 128  # logits a group when the largest ones are looked for by their groups' maxima
_FIRST_NUCLEUS = 256  # candidates that top-p looks at before it looks at more
_LARGEST = float(np.finfo(np.float32).max)


class BadLogitsError(ArithmeticError):
    """The model's logits hold NaN or +inf, or nothing but −inf: no id can be chosen from them."""


@attrs.frozen(eq=False)
class Allowed:
    """The ids that have a token: those below ``limit``, except ``holes``."""

    limit: int
    holes: Ids

    @classmethod
    def from_ids(cls, ids: Ids) -> Allowed:
        """From all ids that have a token, ascending; there must be one."""
        limit = int(ids[-1]) + 1
        return cls(limit, np.setdiff1d(np.arange(limit), ids))


class Sampler:
    """One job's sampler, with a generator of its own.

    `prompt_ids` count for the repetition penalty. A seed is any integer of 64 bits, negative ones included.
    """

    def __init__(self, sampling: Sampling, allowed: Allowed, prompt_ids: Sequence[int] = ()) -> None:
        self._sampling = sampling
        self._allowed = allowed
        self._seen: npt.NDArray[np.bool_] | None = None
        if sampling.repetition_penalty != 1:
            self._seen = np.zeros(allowed.limit, np.bool_)
            ids = np.asarray(prompt_ids, np.int64)
            self._seen[ids[ids < allowed.limit]] = True

    def choose(self, logits: Floats) -> int:
        """The next id from fp32 logits [V], which are left as they are. Raises BadLogitsError."""
        ids, cumulative = self.distribution(logits)
        greedy = self._sampling.temperature == 0
        chosen = int(ids[0 if greedy else _draw(cumulative, self._generator.random())])
        if self._seen is not None:
            self._seen[chosen] = True
        return chosen

    def distribution(self, logits: Floats) -> tuple[Ids, Weights]:
        """The ids that may be drawn and their cumulative weights, not normalised. Raises BadLogitsError."""
        scores = self._scores(logits)
        best = int(scores.argmax())  # NaN anywhere is taken for the highest
        highest = float(scores[best])
        if not math.isfinite(highest):
            raise BadLogitsError(f"the highest logit is {highest}")
        if self._sampling.temperature == 0:
            return np.array([best]), np.ones(1)
        ids, weights, total = self._candidates(scores, highest)
        cumulative = np.cumsum(weights)
        if self._sampling.top_p < 1:
            kept = int(np.searchsorted(cumulative, self._sampling.top_p * total)) + 1
            ids, cumulative = ids[:kept], cumulative[:kept]
        return ids, cumulative

    @functools.cached_property
    def _generator(self) -> np.random.Generator:
        """Made when first drawn from: greedy sampling never does."""
        seed = self._sampling.seed
        return np.random.Generator(np.random.PCG64(None if seed is None else seed % 2**64))

    def _scores(self, logits: Floats) -> Floats:
        scores = logits[: self._allowed.limit]
        if self._seen is None and not self._allowed.holes.size:
            return scores
        scores = scores.copy()
        if self._seen is not None:
            _penalise(scores, np.flatnonzero(self._seen), self._sampling.repetition_penalty)
        scores[self._allowed.holes] = -np.inf
        return scores

    def _candidates(self, scores: Floats, highest: float) -> tuple[Ids, Weights, float]:
        """Ids that may be drawn (best first where that matters), their weights, and the weight of all."""
        sampling = self._sampling
        if sampling.top_k:
            ids = _largest(scores, sampling.top_k)
            weights = _weights(scores[ids], highest, sampling.temperature)
            return ids, weights, float(weights.sum())
        weights = _weights(scores, highest, sampling.temperature)
        total = float(weights.sum())
        if sampling.top_p == 1:
            return np.arange(len(scores)), weights, total
        ids = _nucleus(scores, weights, sampling.top_p * total)
        return ids, weights[ids], total


def _penalise(scores: Floats, ids: Ids, penalty: float) -> None:
    """Divide positive scores by the penalty and multiply the others, in place; finite ones stay finite."""
    ids = ids[np.isfinite(scores[ids])]
    chosen = scores[ids].astype(np.float64)
    with np.errstate(over="ignore"):
        chosen = np.where(chosen < 0, chosen * penalty, chosen / penalty)
    scores[ids] = np.clip(chosen, -_LARGEST, _LARGEST)


def _weights(scores: Floats, highest: float, temperature: float) -> Weights:
    """exp((score − highest) / temperature), so that the best id has weight 1 and nothing overflows."""
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature: −inf is the right quotient
        return np.exp((scores.astype(np.float64) - highest) / temperature)


def _largest(scores: Floats, count: int) -> Ids:
    """Ids of the ``count`` largest scores and of those equal to the least of them; best first, ties by id."""
    if count < len(scores):
        ids = np.flatnonzero(scores >= _lower_bound(scores, count))
        if len(ids) > count:
            ids = ids[scores[ids] >= np.partition(scores[ids], -count)[-count]]
    else:
        ids = np.arange(len(scores))
    return ids[np.argsort(-scores[ids], kind="stable")]


def _lower_bound(scores: Floats, count: int) -> float:
    """Some value that at least ``count`` scores reach, close to the count-th largest.

    Each of the ``count`` largest group maxima is such a score, and maxima of groups are quick to find: a
    partition of all scores would cost ten times as much.
    """
    groups = len(scores) // _ROWS
    if count > groups:
        return float(np.partition(scores, -count)[-count])
    maxima = scores[: groups * _ROWS].reshape(_ROWS, groups).max(axis=0)
    return float(np.partition(maxima, -count)[-count])


def _nucleus(scores: Floats, weights: Weights, wanted: float) -> Ids:
    """The best ids, best first, that have at least the wanted weight together; often more of them."""
    count = _FIRST_NUCLEUS
    ids = _largest(scores, count)
    while count < len(scores) and weights[ids].sum() < wanted:
        count *= 8
        ids = _largest(scores, count)
    return ids


def _draw(cumulative: Weights, fraction: float) -> int:
    """The index that ``fraction`` in [0, 1) of the last sum falls into."""
    index = int(np.searchsorted(cumulative, fraction * cumulative[-1], side="right"))
    # A product that rounds up to the sum would fall behind the last candidate that has any weight.
    return min(index, int(np.searchsorted(cumulative, cumulative[-1])))
