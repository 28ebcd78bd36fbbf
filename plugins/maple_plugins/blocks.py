"""Tool calls that stand in blocks: the reading of the text around blocks, shared by all tool parsers.

A format supplies a ``Block``, which reads from an opening marker to its end and says what it held; a format
as plain as "one text between two markers" derives from ``DelimitedToolParser`` and supplies one method.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Sequence
from typing import ClassVar

import attrs

from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ToolCall
from maple_plugins.json_scan import JsonScan
from maple_plugins.parser import MarkupFault, ParserContext
from maple_plugins.spans import EdgeTrim, Found, MarkerSearch

_BRACKET = re.compile(r"[{\[]")


@attrs.frozen(kw_only=True)
class BlockEnd:
    """What a block held, once it is over.

    ``calls`` are its calls in order. ``text`` is the block's own text, markers included, where it was no tool
    block after all, and empty where it was one. ``unread`` is text that was taken in but lies beyond the
    block: it is read again. ``follow`` is a block that opens on the spot.
    """

    calls: tuple[ToolCall, ...] = ()
    text: str = ""
    unread: str = ""
    follow: Block | None = None


class Block(abc.ABC):
    """An open block. Made when its opening marker was read."""

    @abc.abstractmethod
    def feed(self, text: str, at: int) -> tuple[int, BlockEnd | None]:
        """Read ``text`` from ``at``; return where reading stopped, and the end if the block is over.

        While the block stays open all of the text is taken.
        """

    @abc.abstractmethod
    def close(self, finish: ModelFinish) -> BlockEnd:
        """The text is over and the block still open. At ``length`` all of it must come back as text."""


class BlockToolParser(abc.ABC):
    """A tool parser whose calls stand in blocks.

    The first of ``markers`` opens a block. ``straggler`` is a marker dropped once directly after a tool
    block, with only white space between, and text anywhere else. Newlines next to a tool block are trimmed.
    """

    markers: ClassVar[tuple[str, ...]]
    straggler: ClassVar[str | None] = None

    def __init__(self, context: ParserContext) -> None:
        self.context = context
        self._search = MarkerSearch([self.markers[0], *([self.straggler] if self.straggler else [])])
        self._trim = EdgeTrim(at_edge=False, keeps_line=context.keeps_line)
        self._after_block = False
        self._block: Block | None = None
        self._fault: MarkupFault | None = None

    @property
    def fault(self) -> MarkupFault | None:
        """Why the first block that came back as text did; None as long as none has."""
        return self._fault

    @abc.abstractmethod
    def open(self) -> Block:
        """Begin to read a block, just behind its opening marker."""

    def feed(self, text: str) -> Sequence[ParserEvent]:
        """Take the next piece and return the text and calls that are certain now."""
        return self._read(text)

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        """End the text: an open block counts as closed at ``stop``, and is text at ``length``."""
        events: list[ParserEvent] = []
        while self._block is not None:
            end = self._block.close(finish)
            events += self._settle(end, "cut_off" if finish == "length" else "unclosed")
            events += self._read(end.unread)
        events += self._content(self._search.close())
        newlines = self._trim.close()
        return [*events, ContentDelta(newlines)] if newlines else events

    def _read(self, text: str) -> list[ParserEvent]:
        events: list[ParserEvent] = []
        sources = [(text, 0)] if text else []
        while sources:
            source, at = sources.pop()
            at, unread = self._step(source, at, events)
            if at < len(source):
                sources.append((source, at))
            if unread:
                sources.append((unread, 0))
        return events

    def _step(self, text: str, at: int, events: list[ParserEvent]) -> tuple[int, str]:
        if self._block is None:
            found = self._search.feed(text, at)
            events += self._outside(found)
            return found.end, ""
        at, end = self._block.feed(text, at)
        if end is None:
            return at, ""
        events += self._settle(end, "no_call")
        return at, end.unread

    def _outside(self, found: Found) -> list[ParserEvent]:
        events = self._content(found.before)
        if found.marker == self.markers[0]:
            self._block = self.open()
        elif found.marker is not None:
            dropped, self._after_block = self._after_block, False
            events += [] if dropped else self._content(found.marker)
        return events

    def _settle(self, end: BlockEnd, fault: MarkupFault) -> list[ParserEvent]:
        self._block = end.follow
        if end.text:
            marked = end.text.startswith(self.markers[0])  # a block without its marker is no one's mistake
            self._fault = self._fault or (fault if marked else None)
            return self._content(end.text)
        self._trim.edge()
        self._after_block = True
        return list(end.calls)

    def _content(self, text: str) -> list[ParserEvent]:
        self._after_block = self._after_block and not text.strip()
        certain = self._trim.text(text)
        return [ContentDelta(certain)] if certain else []


class DelimitedToolParser(BlockToolParser):
    """For formats with one opening and one closing marker: ``markers`` are these two, in this order.

    The first closing marker that stands in no string of the JSON between them ends the block.
    """

    @abc.abstractmethod
    def calls(self, body: str) -> Sequence[ToolCall]:
        """The calls that the text between the markers holds; none leaves the whole block as text."""

    def open(self) -> Block:
        """Begin to read a block."""
        return _DelimitedBlock(self)


class _DelimitedBlock(Block):
    def __init__(self, parser: DelimitedToolParser) -> None:
        self._parser = parser
        self._opener = parser.markers[0]
        self._search = MarkerSearch(parser.markers[1:])
        self._body: list[str] = []
        self._json: JsonScan | None = None

    def feed(self, text: str, at: int) -> tuple[int, BlockEnd | None]:
        found = self._search.feed(text, at)
        self._take(found.before)
        if found.marker is None:
            return found.end, None
        if self._json is None or not self._json.in_string:
            return found.end, self._end(found.marker)
        self._take(found.marker)
        return found.end, None

    def _take(self, text: str) -> None:
        self._body.append(text)
        begin = 0
        if self._json is None and (bracket := _BRACKET.search(text)):
            self._json, begin = JsonScan(bracket[0]), bracket.end()
        if self._json is not None:
            self._json.feed(text, begin)

    def close(self, finish: ModelFinish) -> BlockEnd:
        self._body.append(self._search.close())
        return BlockEnd(text=self._opener + "".join(self._body)) if finish == "length" else self._end("")

    def _end(self, closer: str) -> BlockEnd:
        body = "".join(self._body)
        calls = tuple(self._parser.calls(body))
        return BlockEnd(calls=calls) if calls else BlockEnd(text=self._opener + body + closer)
