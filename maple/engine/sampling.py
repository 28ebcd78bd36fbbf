"""How the next id is chosen from logits: Transformers' rules in their order, in numpy.

Penalties, bias, mask, temperature, top-k, top-p, min-p, draw. maple/native/src/sampling.cpp does the same operations in
the same order, so that a seed gives the same ids with and without a compiler. Nothing global is read or changed.
By hand: Transformers' own needs torch and draws from its one generator.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from maple.engine.allowed import Allowed, Ids, Mask
from maple.engine.api import Sampling
from maple.engine.weights import cut_after, draw, exponentials, total

Floats = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]

_GROUP = 128  # logits a group when the largest ones are looked for by their groups' maxima
_LARGEST = float(np.finfo(np.float32).max)
_FEW_LARGEST = 1024  # up to so many are gathered, more are cut off where they stand
_BAN = -100.0


class BadLogitsError(ArithmeticError):
    """The model's logits hold NaN or +inf, or nothing but −inf: no id can be chosen from them."""


@attrs.frozen(kw_only=True, eq=False)
class SampleRow:
    """What one id is chosen from: ``logits`` [limit or more] fp32, and where to draw, ``fraction`` of [0, 1).

    ``seen``: distinct ids for the repetition penalty. ``counted``: distinct output ids with their ``counts``, for
    presence and frequency. ``biased`` ids get ``bias`` added, or are banned from −100 down. ``mask`` uint32 has a bit
    an id, 0 where it may not be chosen.
    """

    logits: Floats
    sampling: Sampling
    limit: int
    fraction: float
    seen: Sequence[int] = ()
    counted: Sequence[int] = ()
    counts: Sequence[int] = ()
    biased: Sequence[int] = ()
    bias: Sequence[float] = ()
    mask: npt.NDArray[np.uint32] | None = None


SampleRows: TypeAlias = Callable[[Sequence[SampleRow]], Sequence[int]]
"""Chooses an id for each row; −1 where the logits allow none."""


class OutputCounts:
    """How often each id of an output has come, for the penalties on it."""

    def __init__(self) -> None:
        self.ids = array("i")
        self.counts = array("i")
        self._places: dict[int, int] = {}

    def add(self, token: int) -> None:
        """Count an id."""
        place = self._places.setdefault(token, len(self.ids))
        if place == len(self.ids):
            self.ids.append(token)
            self.counts.append(0)
        self.counts[place] += 1


class Sampler:
    """One job's sampler, with a generator of its own.

    ``prompt_ids`` count for the repetition penalty, ``eos`` are the ids that end a text by themselves. A seed is any
    integer of 64 bits, negative ones included.
    """

    def __init__(
        self, sampling: Sampling, allowed: Allowed, prompt_ids: Sequence[int] = (), eos: Iterable[int] = ()
    ) -> None:
        self._sampling = sampling
        self._allowed = allowed
        self._eos = tuple(eos)
        self._taken = 0
        self._seen: dict[int, None] = {}
        self._seen_ids = array("i")
        self._counts = OutputCounts() if sampling.presence or sampling.frequency else None
        bias = [(token, value) for token, value in sampling.bias if token < allowed.limit]
        self._biased = array("i", [token for token, _ in bias])
        self._bias = array("f", [value for _, value in bias])
        if sampling.repetition_penalty != 1:
            self._note(prompt_ids)

    def row(self, logits: Floats, held_to: Mask | None = None, *, ends: bool = True) -> SampleRow:
        """What the next id is to be chosen from, where ``held_to`` allows it; each row draws a number of its own.

        Without ``ends`` the text does not end by itself.
        """
        greedy = self._sampling.temperature == 0
        mask = _both(self._mask(ends), held_to)
        biased, bias = self._bias_within(mask)
        return SampleRow(
            logits=logits,
            sampling=self._sampling,
            limit=self._allowed.limit,
            fraction=0.0 if greedy else self._generator.random(),
            seen=self._seen_ids,
            counted=self._counts.ids if self._counts else (),
            counts=self._counts.counts if self._counts else (),
            biased=biased,
            bias=bias,
            mask=mask,
        )

    def take(self, chosen: int) -> int:
        """The id that was chosen, once it counts. Raises BadLogitsError for −1."""
        if chosen < 0:
            raise BadLogitsError("the logits allow no id")
        self._taken += 1
        if self._sampling.repetition_penalty != 1:
            self._note([chosen])
        if self._counts:
            self._counts.add(chosen)
        return chosen

    def choose(self, logits: Floats) -> int:
        """The next id from fp32 logits [V], which are left as they are. Raises BadLogitsError."""
        return self.take(choose_ids([self.row(logits)])[0])

    def distribution(self, logits: Floats) -> tuple[Ids, Weights]:
        """The ids that may be drawn and their cumulative weights, not normalised. Raises BadLogitsError."""
        found = _weighed(self.row(logits))
        if found is None:
            raise BadLogitsError("the logits allow no id")
        ids, weights = found
        return ids[weights > 0], np.cumsum(weights[weights > 0])

    @functools.cached_property
    def _generator(self) -> np.random.Generator:
        """Made when first drawn from: greedy sampling never does."""
        seed, choice = self._sampling.seed, self._sampling.choice
        if seed is None:
            return np.random.Generator(np.random.PCG64())
        return np.random.Generator(np.random.PCG64([seed % 2**64, choice] if choice else seed % 2**64))

    def _bias_within(self, mask: Mask | None) -> tuple[Sequence[int], Sequence[float]]:
        """The bias on ids; bans are left out where no id that ``mask`` allows would be left."""
        if self._unbanned is None:
            return self._biased, self._bias
        left = self._unbanned if mask is None else self._unbanned[: len(mask)] & mask[: len(self._unbanned)]
        if left.any():
            return self._biased, self._bias
        kept = [(token, value) for token, value in zip(self._biased, self._bias, strict=True) if value > _BAN]
        return [token for token, _ in kept], [value for _, value in kept]

    @functools.cached_property
    def _unbanned(self) -> Mask | None:
        """The ids that no bias bans; None where none is banned."""
        banned = [token for token, value in zip(self._biased, self._bias, strict=True) if value <= _BAN]
        return self._allowed.without(banned) if banned else None

    def _mask(self, ends: bool = True) -> Mask | None:
        """The ids that may be chosen now."""
        if self._taken < self._sampling.min_tokens:
            return self._barred
        return self._allowed.mask if ends and not self._sampling.ignore_eos else self._endless

    @functools.cached_property
    def _barred(self) -> Mask:
        return self._allowed.without((*self._eos, *self._sampling.stop_ids))

    @functools.cached_property
    def _endless(self) -> Mask:
        return self._allowed.without(self._eos)

    def _note(self, ids: Sequence[int]) -> None:
        for token in ids:
            if token < self._allowed.limit and token not in self._seen:
                self._seen[token] = None
                self._seen_ids.append(token)


def _both(own: Mask | None, held_to: Mask | None) -> Mask | None:
    """What both allow; where that is nothing, what is held to: an end that a grammar asks for comes before its time."""
    if own is None or held_to is None:
        return own if held_to is None else held_to
    words = min(len(own), len(held_to))
    found = own[:words] & held_to[:words]
    return found if found.any() else held_to


def choose_ids(rows: Sequence[SampleRow]) -> list[int]:
    """``SampleRows`` in numpy: what serves where the kernels do not."""
    chosen = []
    for row in rows:
        found = _weighed(row)
        chosen.append(-1 if found is None else int(found[0][draw(found[1], row.fraction)]))
    return chosen


def _weighed(row: SampleRow) -> tuple[Ids, Weights] | None:
    """The candidates by id and their weights, 0 for those that top-p or min-p rule out; None where there are none."""
    sampling, scores = row.sampling, _scores(row)
    best = int(scores.argmax())  # NaN anywhere is taken for the highest
    highest = float(scores[best])
    if not math.isfinite(highest):
        return None
    if sampling.temperature == 0:
        return np.array([best]), np.ones(1)
    largest = ids = np.arange(len(scores))
    if 0 < sampling.top_k < len(scores):
        largest = _largest(scores, sampling.top_k)
    if sampling.top_k <= _FEW_LARGEST:
        ids, scores = largest, scores[largest]
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature: −inf is the right quotient
        weights = exponentials((scores.astype(np.float64) - highest) / sampling.temperature)
    if len(largest) < len(ids):
        weights[np.setdiff1d(ids, largest, assume_unique=True)] = 0
    if sampling.top_p < 1:
        wanted = sampling.top_p * total(weights)
        cut_after(scores.astype(np.float64), weights, highest, sampling.temperature, wanted)
    if sampling.min_p > 0:
        weights[weights < sampling.min_p] = 0
    return ids, weights


def _scores(row: SampleRow) -> Floats:
    """The logits after penalties, bias and mask."""
    scores = row.logits[: row.limit].copy()
    if len(row.seen):
        penalty = row.sampling.repetition_penalty
        _edit(scores, row.seen, lambda some: np.where(some < 0, some * penalty, some / penalty))
    if len(row.counted):
        penalties = row.sampling.frequency * np.asarray(row.counts, np.float64) + row.sampling.presence
        _edit(scores, row.counted, lambda some: some - penalties)
    if len(row.biased):
        bias = np.asarray(row.bias, np.float32).astype(np.float64)
        _edit(scores, row.biased, lambda some: some + bias)
        scores[np.asarray(row.biased)[bias <= _BAN]] = -np.inf
    if row.mask is not None:
        bits = np.unpackbits(row.mask.astype("<u4").view(np.uint8), bitorder="little")
        scores[bits[: row.limit] == 0] = -np.inf
    return scores


def _edit(scores: Floats, ids: Sequence[int], change: Callable[[Weights], Weights]) -> None:
    """Change some scores in place, in double; finite ones stay finite, and others stay as they are."""
    at = np.asarray(ids, np.int64)
    before = scores[at]
    with np.errstate(all="ignore"):
        after = np.clip(change(before.astype(np.float64)), -_LARGEST, _LARGEST)
    scores[at] = np.where(np.isfinite(before), after, before)


def _largest(scores: Floats, count: int) -> Ids:
    """Ids of the ``count`` largest scores and of those equal to the least of them, ascending."""
    ids = np.flatnonzero(scores >= _lower_bound(scores, count))
    if len(ids) > count:
        ids = ids[scores[ids] >= np.partition(scores[ids], -count)[-count]]
    return ids


def _lower_bound(scores: Floats, count: int) -> float:
    """Some value that at least ``count`` scores reach, close to the count-th largest.

    Each of the ``count`` largest group maxima is such a score, and maxima of groups are quick to find: a
    partition of all scores would cost ten times as much.
    """
    groups = len(scores) // _GROUP
    if count > groups:
        return float(np.partition(scores, -count)[-count])
    maxima = scores[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    return float(np.partition(maxima, -count)[-count])
