"""Reasoning that the model opens itself: ``[[We add.]]391``."""

from __future__ import annotations

from collections.abc import Sequence

from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ReasoningDelta
from maple_plugins.parser import ParserContext
from maple_plugins.spans import MarkerSearch


class AcmeReasoning:
    """Text up to ``]]`` is reasoning if the output begins with ``[[``."""

    markers = ("[[", "]]")

    def __init__(self, context: ParserContext) -> None:
        self._search = MarkerSearch(self.markers)
        self._kind: type[ReasoningDelta | ContentDelta] | None = None
        self._fed = 0
        self._end: int | None = 0

    @classmethod
    def prompt_ends_inside(cls, prompt: str) -> bool:
        """Acme's prompts never open the block."""
        return False

    @property
    def reasoning_end(self) -> int | None:
        """Characters before ``]]``; 0 while no block was opened."""
        return self._end

    def feed(self, text: str) -> Sequence[ParserEvent]:
        """Take the next piece."""
        events: list[ParserEvent] = []
        at = 0
        while at < len(text):
            found = self._search.feed(text, at)
            at = found.end
            events += self._say(found.before)
            if found.marker is not None:
                events += self._marker(found.marker, self._fed + at)
        self._fed += len(text)
        return events

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        """Release what looked like the beginning of a marker."""
        return self._say(self._search.close())

    def _say(self, text: str) -> list[ParserEvent]:
        if not text:
            return []
        self._kind = self._kind or ContentDelta
        return [self._kind(text)]

    def _marker(self, marker: str, end: int) -> list[ParserEvent]:
        if marker == "[[" and self._kind is None:
            self._kind, self._end = ReasoningDelta, None
        elif marker == "]]" and self._kind is ReasoningDelta:
            self._kind, self._end = ContentDelta, end - len(marker)
        else:
            return self._say(marker)
        return []
