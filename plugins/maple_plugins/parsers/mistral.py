"""``mistral``: the tool calls of Mistral templates, old (a JSON list) and new (name and arguments)."""

from __future__ import annotations

import re
from typing import ClassVar

import attrs

from maple_plugins.blocks import Block, BlockEnd, BlockToolParser
from maple_plugins.events import ModelFinish, ToolCall
from maple_plugins.json_calls import read_call
from maple_plugins.json_scan import JsonScan, skip_spaces
from maple_plugins.spans import MarkerSearch

OPENER = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"
_NAME = re.compile(r'[^\s\[\]{}"]+')
_NOT_IN_NAMES = (" ", "\n", "\t", "{")


class MistralToolParser(BlockToolParser):
    """Reads ``[TOOL_CALLS][{"name": …, "arguments": …}, …]`` and ``[TOOL_CALLS]name[ARGS]{…}``.

    Nothing closes a block but the end of its JSON. Where a list breaks off, the calls before that count.
    """

    markers: ClassVar[tuple[str, ...]] = (OPENER, ARGUMENTS)

    def open(self) -> Block:
        """Begin to read one list or one call."""
        return _CallsBlock()


class _CallsBlock(Block):
    def __init__(self) -> None:
        self._raw = [OPENER]
        self._name_search: MarkerSearch | None = None
        self._name_parts: list[str] = []
        self._name = ""
        self._value: JsonScan | None = None

    def feed(self, text: str, at: int) -> tuple[int, BlockEnd | None]:
        if self._value is not None:
            return self._read_value(self._value, text, at)
        if self._name_search is not None:
            return self._read_name(self._name_search, text, at)
        start = skip_spaces(text, at)
        self._raw.append(text[at:start])
        if start == len(text):
            return start, None
        return self._begin(text, start)

    def close(self, finish: ModelFinish) -> BlockEnd:
        if self._value is not None and finish == "stop":
            self._value.end()
            return self._value_over(self._value)
        if self._value is not None:
            return self._as_text(self._value.text)
        name = "".join(self._name_parts)
        return self._as_text(name + (self._name_search.close() if self._name_search is not None else ""))

    def _begin(self, text: str, at: int) -> tuple[int, BlockEnd | None]:
        """At the first character behind the opener, or behind ``[ARGS]``."""
        bracket = "{" if self._name else "["
        if text[at] == bracket:
            self._value = JsonScan(bracket)
            return at + 1, None
        if self._name:
            return at, self._as_text("")
        self._name_search = MarkerSearch((ARGUMENTS, OPENER, *_NOT_IN_NAMES))
        return at, None

    def _read_name(self, search: MarkerSearch, text: str, at: int) -> tuple[int, BlockEnd | None]:
        found = search.feed(text, at)
        self._name_parts.append(found.before)
        if found.marker is None:
            return found.end, None
        name = "".join(self._name_parts)
        if found.marker == ARGUMENTS and _NAME.fullmatch(name):
            self._name, self._name_search, self._name_parts = name, None, []
            self._raw += [name, ARGUMENTS]
            return found.end, None
        return found.end, attrs.evolve(self._as_text(name), unread=found.marker)

    def _read_value(self, value: JsonScan, text: str, at: int) -> tuple[int, BlockEnd | None]:
        at = value.feed(text, at)
        return at, None if value.state == "open" else self._value_over(value)

    def _value_over(self, value: JsonScan) -> BlockEnd:
        calls = self._calls(value)
        if value.state == "complete":
            return BlockEnd(calls=calls) if calls else self._as_text(value.text)
        # the bracket at which a list breaks may be the first character of the next opener
        unread = value.doubtful or ("[" if value.text.endswith("[") else "")
        end = BlockEnd(calls=calls) if calls else self._as_text(value.text.removesuffix(unread))
        return attrs.evolve(end, unread=unread)

    def _calls(self, value: JsonScan) -> tuple[ToolCall, ...]:
        if not self._name:
            return tuple(call for call in map(read_call, value.objects) if call is not None)
        return (ToolCall(self._name, value.text),) if value.state == "complete" else ()

    def _as_text(self, rest: str) -> BlockEnd:
        return BlockEnd(text="".join(self._raw) + rest)
