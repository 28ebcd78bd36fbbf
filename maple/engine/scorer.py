"""Log probabilities: what the model itself thought of an id, and of the likeliest in its place.

They are of the model's own distribution, before penalties, bias, mask and temperature, over the ids that have a
token. One pass in numpy over a row of logits serves every runner, so all of them give the same.
"""

from __future__ import annotations

import numpy as np

from maple.engine.allowed import Allowed
from maple.engine.detokenize import TokenBytes
from maple.engine.sampling import Floats
from maple.engine.scores import LEAST, Score


class Scorer:
    """Scores one sequence's ids, with the ``count`` likeliest beside each."""

    def __init__(self, count: int, allowed: Allowed, token_bytes: TokenBytes) -> None:
        self._count = count
        self._allowed = allowed
        self._token_bytes = token_bytes

    def score(self, logits: Floats, token_id: int) -> Score:
        """What a row of logits [limit or more] says of the id that follows."""
        logits = self._own(logits)
        highest = float(logits.max())
        with np.errstate(all="ignore"):
            total = np.exp(logits - np.float32(highest)).sum(dtype=np.float64)
        base = highest + float(np.log(total))
        ids = self._likeliest(logits)
        if self._count and token_id not in ids:
            ids.append(token_id)
        top = tuple((self._token_bytes[one], _logprob(logits, one, base)) for one in ids)
        return Score(self._token_bytes[token_id], _logprob(logits, token_id, base), top)

    def unscored(self, token_id: int) -> Score:
        """An id that nothing came before."""
        return Score(self._token_bytes[token_id], None)

    def _own(self, logits: Floats) -> Floats:
        """Those of ids that have a token."""
        logits = logits[: self._allowed.limit]
        if self._allowed.holes.size:
            logits = logits.copy()
            logits[self._allowed.holes] = -np.inf
        return logits

    def _likeliest(self, logits: Floats) -> list[int]:
        """The likeliest ids in descending order, of equals the lower first."""
        count = min(self._count, len(logits))
        if not count:
            return []
        least = np.partition(logits, -count)[-count]
        ids = np.flatnonzero(logits >= least)
        return [int(one) for one in ids[np.argsort(-logits[ids], kind="stable")][:count]]


def _logprob(logits: Floats, token_id: int, base: float) -> float:
    value = float(logits[token_id]) - base
    return max(LEAST, value)  # also for NaN, which no comparison finds greater
