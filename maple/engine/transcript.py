"""One sequence's output: ids in, certain text out, with the place of every id in it."""

from __future__ import annotations

from collections.abc import Sequence

from maple.engine.api import Piece
from maple.engine.detokenize import Detokenizer, TokenBytes
from maple.engine.scores import Score
from maple.engine.stops import StopMatcher


class Transcript:
    """Detokenises and cuts at stop strings. Ids whose text is held wait for the next piece with text.

    Stop strings are not looked for in the text of the first ``at_least`` ids.
    """

    def __init__(
        self, token_bytes: TokenBytes, stops: Sequence[str], behind: str | None = None, *, at_least: int = 0
    ) -> None:
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopMatcher(stops, behind)
        self._unstopped = at_least
        self._offsets: list[int] = []
        self._scores: list[Score] = []
        self._echoed: list[str] = []

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._stops.matched

    @property
    def stop_word(self) -> str | None:
        """The stop string that did."""
        return self._stops.word if self._stops.matched else None

    def feed(self, token_id: int, score: Score | None = None) -> list[Piece]:
        """Add an id, and how likely it was, if that is wanted; the piece that is certain now, if any."""
        text, offset = self._detokenizer.feed(token_id)
        self._offsets.append(offset)
        if score is not None:
            self._scores.append(score)
        if self._unstopped:
            self._unstopped -= 1
            return self._piece(self._stops.skip(text), even_without_text=False)
        return self._piece(self._stops.feed(text), even_without_text=False)

    def echo(self, token_id: int, score: Score | None) -> None:
        """Put an id of the prompt in front of the text: before any other, and never cut."""
        text, _ = self._detokenizer.feed(token_id)
        self._echoed.append(self._stops.skip(text))
        if score is not None:
            self._scores.append(score)

    def close(self) -> list[Piece]:
        """The output has ended: what was held. Whether it stopped at a stop string is final after this."""
        tail = self._stops.feed(self._detokenizer.close())
        return self._piece(tail + self._stops.close(), even_without_text=True)

    def _piece(self, text: str, *, even_without_text: bool) -> list[Piece]:
        text, self._echoed = "".join((*self._echoed, text)), []
        if not text and not (even_without_text and self._offsets):
            return []
        offsets, self._offsets = tuple(self._offsets), []
        scores, self._scores = tuple(self._scores), []
        return [Piece(text, offsets, scores)]
