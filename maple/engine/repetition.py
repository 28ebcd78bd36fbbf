"""Whether a text goes round in circles."""

from __future__ import annotations

import numpy as np

_LONGEST = 64
_TIMES = 8
_LEAST = 512


class Repetition:
    """Sees a loop: a period of at most 64 ids that fills at least 512, eight times at least."""

    def __init__(self) -> None:
        self._recent = np.full(_LONGEST, -1, np.int64)
        """The last ids, the latest first."""
        self._runs = np.zeros(_LONGEST, np.int64)
        """How many ids in a row were like the one a period before, by the period less one."""
        periods = np.arange(1, _LONGEST + 1)
        self._enough = np.maximum(_TIMES * periods, _LEAST) - periods

    def take(self, token_id: int) -> bool:
        """Note an id; whether the text ends in a loop."""
        self._runs = np.where(self._recent == token_id, self._runs + 1, 0)
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token_id
        return bool((self._runs >= self._enough).any())
