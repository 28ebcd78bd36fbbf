"""What an answer is held to: a grammar that begins where the answer does, and the ids that it allows next.

Everything here is the engine thread's; ``Grammar.start`` is all that another thread has prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Protocol

import numpy as np
import numpy.typing as npt

from maple.engine.detokenize import TokenBytes

Mask = npt.NDArray[np.uint32]
"""A bit an id, least significant first; 0 where it may not be chosen."""


def allow(mask: Mask, ids: Iterable[int]) -> None:
    """Let these ids be chosen, too."""
    for token_id in ids:
        mask[token_id // 32] |= np.uint32(1 << token_id % 32)


class Matcher(Protocol):
    """One text on its way through a grammar."""

    def mask(self) -> Mask:
        """The ids that may come next, the text's ends among them where it may end. Raises OutOfGrammar."""
        ...

    def accept(self, token_id: int) -> bool:
        """Take an id; False where the grammar has no place for it."""
        ...


class Grammar(Protocol):
    """A compiled grammar, which any number of texts may go through."""

    def start(self) -> Matcher:
        """A matcher at the grammar's beginning."""
        ...


class OutOfGrammar(Exception):
    """The text cannot go on: an id has no place in the grammar, or the matcher has used up its limits."""


class Constraint:
    """One sequence's grammar. It begins behind the first ``behind`` in the text, or at once where that is None.

    Between the two the model may leave its usual gap, one token of newlines, which is no part of the answer.
    ``newlines`` are the ids of such tokens.
    """

    def __init__(
        self, grammar: Grammar, behind: str | None, token_bytes: TokenBytes, newlines: Callable[[], Set[int]]
    ) -> None:
        self._matcher = grammar.start()
        self._behind = None if behind is None else behind.encode()
        self._token_bytes = token_bytes
        self._newlines = newlines
        self._tail = b""
        self._gap = behind is not None

    def mask(self) -> Mask | None:
        """The ids that may come next; None while any may. Raises OutOfGrammar."""
        if self._behind is not None:
            return None
        mask = self._matcher.mask()
        if self._gap:
            allow(mask, self._newlines())
        return mask

    def accept(self, token_id: int) -> None:
        """Take the id that was chosen. Raises OutOfGrammar."""
        if self._behind is not None:
            self._wait(self._behind, self._token_bytes[token_id])
            return
        gap, self._gap = self._gap, False
        if gap and token_id in self._newlines():
            return
        if not self._matcher.accept(token_id):
            raise OutOfGrammar(f"the grammar has no place for id {token_id}")

    def _wait(self, behind: bytes, data: bytes) -> None:
        window = self._tail + data
        found = window.find(behind)
        if found < 0:
            self._tail = window[-len(behind) + 1 :] if len(behind) > 1 else b""
            return
        self._behind = None
        self._gap = not window[found + len(behind) :]
