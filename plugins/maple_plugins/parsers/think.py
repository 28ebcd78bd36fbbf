"""``think``: reasoning that ends with ``</think>``, as Maple and the Qwen and DeepSeek families write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ReasoningDelta
from maple_plugins.parser import ParserContext
from maple_plugins.spans import EdgeTrim, MarkerSearch


class ThinkParser:
    """A one-way latch: the first ``</think>`` ends the reasoning, and from then on every marker is text.

    A ``<think>`` that opens the output is dropped. Newlines are trimmed at both ends of the reasoning and at
    the start of the answer, but not where the prompt breaks off in either. A prompt that does not end inside the
    block starts with the answer. A format with other markers is a subclass that sets ``markers``, the opening one
    first.
    """

    markers: ClassVar[tuple[str, ...]] = ("<think>", "</think>")

    def __init__(self, context: ParserContext) -> None:
        self._inside = context.in_reasoning
        self._end: int | None = None if self._inside else 0
        self._search = MarkerSearch(self.markers)
        self._trim = EdgeTrim(at_edge=not context.continues)
        self._may_open = True
        self._fed = 0
        self._answer_begins = self._inside or not context.continues

    @classmethod
    def prompt_ends_inside(cls, prompt: str) -> bool:
        """Whether the last marker of the prompt opens the block."""
        opener, closer = cls.markers
        return prompt.rfind(opener) > prompt.rfind(closer)

    @classmethod
    def closer(cls) -> str:
        """The second marker."""
        return cls.markers[1]

    @property
    def reasoning_end(self) -> int | None:
        """Characters fed before ``</think>``; None while the block is open, 0 without reasoning."""
        return self._end

    def feed(self, text: str) -> Sequence[ParserEvent]:
        """Take the next piece and return what is certain now."""
        events: list[ParserEvent] = []
        at = 0
        while self._inside and at < len(text):
            at = self._read_reasoning(text, at, events)
        self._fed += len(text)
        return [*events, *self._answer(text[at:])]

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        """End the text; reasoning that never closed is reasoning, its last newlines trimmed."""
        return self._reasoning(self._search.close())

    def _read_reasoning(self, text: str, at: int, events: list[ParserEvent]) -> int:
        found = self._search.feed(text, at)
        events += self._reasoning(found.before)
        opener, closer = self.markers
        if found.marker == closer:
            self._inside = False
            self._end = self._fed + found.end - len(closer)
        elif found.marker == opener:
            dropped = self._may_open and self._trim.at_edge
            events += [] if dropped else self._reasoning(opener)
            self._may_open = False
        return found.end

    def _reasoning(self, text: str) -> list[ParserEvent]:
        certain = self._trim.text(text)
        return [ReasoningDelta(certain)] if certain else []

    def _answer(self, text: str) -> list[ParserEvent]:
        text = text.lstrip("\n") if self._answer_begins else text
        if not text:
            return []
        self._answer_begins = False
        return [ContentDelta(text)]
