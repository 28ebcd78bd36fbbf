"""Blocks between ``<tool_call>`` tags, which models leave open, open twice, or fill with several calls."""

from __future__ import annotations

import abc
from typing import ClassVar

import attrs

from maple_plugins.blocks import Block, BlockEnd, BlockToolParser
from maple_plugins.events import ModelFinish, ToolCall
from maple_plugins.json_calls import call_key, read_strayed_call
from maple_plugins.json_scan import JsonScan, prose, run_end
from maple_plugins.parser import CallForm
from maple_plugins.spans import MarkerSearch

OPENER = "<tool_call>"
CLOSER = "</tool_call>"
_PROSE = prose(OPENER[0])


class TagBlock(Block):
    """What stands between a pair of tags, and what becomes of it.

    With a good call in it, everything else in it is dropped; without one it is text. The opening tag inside a
    block ends that block and opens the next, in which the calls of the blocks so re-opened are not calls
    again; once one of these held a good call, the others are no text either. At ``stop`` an open block counts
    as closed.
    """

    def __init__(self, earlier: set[str] | None = None) -> None:
        self._earlier = set() if earlier is None else earlier
        self._raw = [OPENER]
        self._calls: list[ToolCall] = []

    @abc.abstractmethod
    def successor(self, earlier: set[str]) -> TagBlock:
        """A block of this kind, re-opened inside this one; ``earlier`` are the keys of the calls so far."""

    @abc.abstractmethod
    def pending(self) -> str:
        """The text that was fed but is not in ``_raw`` yet."""

    def close(self, finish: ModelFinish) -> BlockEnd:
        """At ``length`` the block is text, whatever it holds."""
        self._raw.append(self.pending())
        return BlockEnd(text="".join(self._raw)) if finish == "length" else self._verdict()

    def _ended_by(self, tag: str) -> BlockEnd:
        if tag == CLOSER:
            self._raw.append(tag)
            return self._verdict()
        return attrs.evolve(self._verdict(), follow=self.successor(self._earlier))

    def _verdict(self) -> BlockEnd:
        if not self._calls and not self._earlier:
            return BlockEnd(text="".join(self._raw))
        keyed = [(call_key(call), call) for call in self._calls]
        fresh = tuple(call for key, call in keyed if key not in self._earlier)
        self._earlier.update(key for key, _ in keyed)
        return BlockEnd(calls=fresh)


class JsonBlock(TagBlock):
    """Calls as JSON objects: one or several, back to back, with commas between, or in an array.

    A tag inside a JSON string is none. Anything between the objects is passed over.
    """

    def __init__(self, earlier: set[str] | None = None) -> None:
        super().__init__(earlier)
        self._search = MarkerSearch((OPENER, CLOSER, "{", "["))
        self._value: JsonScan | None = None

    def successor(self, earlier: set[str]) -> TagBlock:
        """Another block of JSON calls."""
        return JsonBlock(earlier)

    def feed(self, text: str, at: int) -> tuple[int, BlockEnd | None]:
        """Read on; text that only looked like a JSON string is read a second time."""
        while at < len(text):
            at, end = self._between(text, at) if self._value is None else self._within(self._value, text, at)
            if end is not None:
                return at, end
        return at, None

    def pending(self) -> str:
        """The beginning of a value or of a tag."""
        return self._search.close() if self._value is None else self._value.text

    def close(self, finish: ModelFinish) -> BlockEnd:
        """At ``stop`` a string without its end was none: a tag in it counts."""
        if finish == "stop" and self._value is not None:
            self._value.end()
            end = self._value_over(self._value)
            if end is not None:
                return end
        return super().close(finish)

    def _between(self, text: str, at: int) -> tuple[int, BlockEnd | None]:
        passed = at if self._search.held else run_end(_PROSE, text, at)
        self._raw.append(text[at:passed])
        found = self._search.feed(text, passed)
        self._raw.append(found.before)
        if found.marker in ("{", "["):
            self._value = JsonScan(found.marker)
        elif found.marker is not None:
            return found.end, self._ended_by(found.marker)
        return found.end, None

    def _within(self, value: JsonScan, text: str, at: int) -> tuple[int, BlockEnd | None]:
        at = value.feed(text, at)
        return at, None if value.state == "open" else self._value_over(value)

    def _value_over(self, value: JsonScan) -> BlockEnd | None:
        self._value = None
        self._calls += [call for call in map(read_strayed_call, value.objects) if call is not None]
        doubtful = value.doubtful if value.state == "broken" else ""
        self._raw.append(value.text.removesuffix(doubtful))
        at, end = self.feed(doubtful, 0)
        return None if end is None else attrs.evolve(end, unread=end.unread + doubtful[at:])


class JsonTagParser(BlockToolParser):
    """A tool parser for JSON calls between ``<tool_call>`` tags."""

    markers: ClassVar[tuple[str, ...]] = (OPENER, CLOSER)

    @classmethod
    def call_form(cls) -> CallForm:
        """A tag, the object and a tag, on three lines."""
        return CallForm(opener=f"{OPENER}\n", closer=f"\n{CLOSER}")

    def open(self) -> Block:
        """Begin to read a block."""
        return JsonBlock()
