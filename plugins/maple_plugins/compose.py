"""The parser chain of one turn: text → reasoning → tools → events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from maple_plugins.errors import ParserFailed
from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ReasoningDelta
from maple_plugins.parser import MarkupFault, ReasoningParser, TellsFault, ToolParser


class Chain:
    """Feeds the reasoning parser, and what it calls the answer to the tool parser.

    One instance a turn, used on one thread. Deltas of one kind that one piece of text gives are one delta,
    and no delta is empty.
    """

    def __init__(self, reasoning: ReasoningParser, tools: ToolParser) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def reasoning_end(self) -> int | None:
        """Characters fed before the marker that closed the reasoning; None while open, 0 without any."""
        return self._reasoning.reasoning_end

    @property
    def fault(self) -> MarkupFault | None:
        """Why the first tool block that came back as text did; None without any, or where no parser tells."""
        return self._tools.fault if isinstance(self._tools, TellsFault) else None

    def feed(self, text: str) -> tuple[ParserEvent, ...]:
        """Take the next piece of the model's text and return what is certain now. Raises ParserFailed."""
        return tuple(_joined(self._through_tools(_said(self._reasoning, "feed", text)))) if text else ()

    def close(self, finish: ModelFinish) -> tuple[ParserEvent, ...]:
        """End the text and return everything still held. Called once; nothing is fed afterwards.

        Raises ParserFailed.
        """
        return tuple(_joined(self._closing(finish)))

    def _closing(self, finish: ModelFinish) -> Iterator[ParserEvent]:
        yield from self._through_tools(_said(self._reasoning, "close", finish))
        yield from _said(self._tools, "close", finish)

    def _through_tools(self, events: Iterable[ParserEvent]) -> Iterator[ParserEvent]:
        for event in events:
            if isinstance(event, ContentDelta):
                yield from _said(self._tools, "feed", event.text) if event.text else ()
            else:
                yield event


def _said(parser: ReasoningParser | ToolParser, method: str, given: str) -> Sequence[ParserEvent]:
    """What a parser says to a piece or to the end. A plugin may raise anything: ParserFailed names it."""
    try:
        return tuple(getattr(parser, method)(given))
    except Exception as error:
        raise ParserFailed(f"{type(parser).__module__}:{type(parser).__qualname__}") from error


def _joined(events: Iterable[ParserEvent]) -> Iterator[ParserEvent]:
    """Join neighbouring deltas of one kind and drop empty ones."""
    kind: type[ReasoningDelta | ContentDelta] = ContentDelta
    texts: list[str] = []
    for event in events:
        delta = isinstance(event, (ReasoningDelta, ContentDelta))
        if texts and not (delta and isinstance(event, kind)):
            yield kind("".join(texts))
            texts = []
        if not isinstance(event, (ReasoningDelta, ContentDelta)):
            yield event
        elif event.text:
            kind = type(event)
            texts.append(event.text)
    if texts:
        yield kind("".join(texts))
