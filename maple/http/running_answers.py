"""The answers that are being made, by the ids that their first event tells."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from maple.choices import AnyTurn


class RunningAnswers:
    """Turns by owner and identity, for as long as they run. On the event loop's thread."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], AnyTurn] = {}

    @contextlib.contextmanager
    def running(self, owner: str, turn: AnyTurn) -> Iterator[None]:
        """Know a turn while the block runs."""
        key = (owner, turn.identity.key)
        self._turns[key] = turn
        try:
            yield
        finally:
            del self._turns[key]

    def find(self, owner: str, answer_id: str) -> AnyTurn | None:
        """The owner's turn whose answer has this id; None where there is none any more."""
        return self._turns.get((owner, answer_id.rpartition("-")[2]))
