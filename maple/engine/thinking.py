"""When a reasoning block ends, if the model does not end it: the budget, what is kept for the answer, a loop, a word.

The ids that close the block go in as if they had been sampled: counted, penalised, cached and told like any others.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from maple.engine.detokenize import TokenBytes
from maple.engine.repetition import Repetition

_GRACE = 10
"""A budget's fraction that may be spent beyond it, to end a line."""


@attrs.frozen(kw_only=True)
class ThinkingLimits:
    """How much a block, which the prompt left open, may take.

    It is over with the first ``closer`` in the text. ``closing`` are the ids that close it behind a newline,
    ``closing_line`` those that end the line first. ``budget`` tokens, None without a bound; ``reserve`` tokens of the
    job's limit are left for the answer. With ``loop_guard`` a loop ends it too.
    """

    closer: str
    closing: tuple[int, ...]
    closing_line: tuple[int, ...]
    budget: int | None = None
    reserve: int = 0
    loop_guard: bool = False


class Thinking:
    """One sequence's block, on the engine's thread. ``hurried`` tells whether the client wants the answer now."""

    def __init__(
        self, limits: ThinkingLimits, token_bytes: TokenBytes, hurried: Callable[[], bool] = lambda: False
    ) -> None:
        self._hurried = hurried
        self._limits = limits
        self._closer = limits.closer.encode()
        self._token_bytes = token_bytes
        self._tail = b"\n"
        self._spent = 0
        self._repetition = Repetition() if limits.loop_guard else None
        self._loops = False
        self._forced: list[int] = []
        self.open = True

    def take(self, token_id: int) -> None:
        """Note an id of the text."""
        if not self.open:
            return
        self._spent += 1
        window = self._tail + self._token_bytes[token_id]
        self.open = self._closer not in window
        self._tail = window[-len(self._closer) :]
        if self._repetition is not None:
            self._loops = self._repetition.take(token_id)

    def forced(self, left: int) -> int | None:
        """The id that has to come next, with ``left`` ids to the job's limit; None where the model is free."""
        if not self._forced and self.open and self._is_due(left):
            closing = self._limits.closing if self._tail.endswith(b"\n") else self._limits.closing_line
            self._forced = list(closing)
        return self._forced.pop(0) if self._forced else None

    def _is_due(self, left: int) -> bool:
        limits = self._limits
        if self._loops or self._hurried():
            return True
        if limits.reserve and left <= limits.reserve + len(limits.closing_line):
            return True
        if limits.budget is None or self._spent < limits.budget:
            return False
        # Templates trim a paragraph's end: closed there, the next turn would be rendered with other ids.
        line_ended = self._tail.endswith(b"\n") and not self._tail.endswith(b"\n\n")
        return line_ended or self._spent >= limits.budget + limits.budget // _GRACE
