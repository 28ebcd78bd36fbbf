"""``qwen_xml``: the tool calls of Qwen 3 Coder templates, a function and its parameters as tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from maple_plugins.blocks import Block, BlockEnd, BlockToolParser
from maple_plugins.events import ToolCall
from maple_plugins.parser import ParserContext
from maple_plugins.spans import MarkerSearch
from maple_plugins.tagged import CLOSER, OPENER, TagBlock
from maple_plugins.typed_values import argument_schemas, json_text, object_text

FUNCTION = "<function="
END_FUNCTION = "</function>"
PARAMETER = "<parameter="
END_PARAMETER = "</parameter>"

_Part = Literal["between", "function name", "parameter name", "value"]
_TAGS = (OPENER, CLOSER, FUNCTION, END_FUNCTION, PARAMETER)
_ENDS: Mapping[_Part, tuple[str, ...]] = {
    "between": _TAGS,
    "function name": (">", "\n", *_TAGS),
    "parameter name": (">", "\n", *_TAGS),
    "value": (END_PARAMETER,),
}


class QwenXmlToolParser(BlockToolParser):
    """Reads ``<function=name>`` with ``<parameter=key>`` tags between ``<tool_call>`` tags.

    A value is everything up to ``</parameter>``, less one newline at each end, and has the type that the
    tool's schema gives it. A function counts once it is closed; one with anything but parameters in it is
    none.
    """

    markers: ClassVar[tuple[str, ...]] = (OPENER, CLOSER, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER)

    def open(self) -> Block:
        """Begin to read a block."""
        return _XmlBlock(self.context)


class _Function:
    """A function being read, and whether all in it was as it should be so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sound = name != ""
        self.values: dict[str, str] = {}


class _XmlBlock(TagBlock):
    def __init__(self, context: ParserContext, earlier: set[str] | None = None) -> None:
        super().__init__(earlier)
        self._context = context
        self._function: _Function | None = None
        self._key = ""
        self._text: list[str] = []
        self._enter("between")

    def successor(self, earlier: set[str]) -> TagBlock:
        """Another block of functions."""
        return _XmlBlock(self._context, earlier)

    def pending(self) -> str:
        """The beginning of a tag."""
        return self._search.close()

    def feed(self, text: str, at: int) -> tuple[int, BlockEnd | None]:
        """Read on; nothing is read twice."""
        while at < len(text):
            found = self._search.feed(text, at)
            at = found.end
            self._raw.append(found.before)
            self._text.append(found.before)
            end = None if found.marker is None else self._marker(found.marker)
            if end is not None:
                return at, end
        return at, None

    def _enter(self, part: _Part) -> None:
        self._part = part
        self._search = MarkerSearch(_ENDS[part])

    def _marker(self, marker: str) -> BlockEnd | None:
        text, self._text = "".join(self._text), []
        self._part_over(text, marker)
        if marker in (OPENER, CLOSER):
            return self._ended_by(marker)
        self._raw.append(marker)
        if marker == FUNCTION:
            self._function = None
            self._enter("function name")
        elif marker == PARAMETER:
            self._enter("parameter name")
        elif marker == END_FUNCTION:
            self._function_over()
        return None

    def _part_over(self, text: str, marker: str) -> None:
        part = self._part
        self._enter("between")
        if part == "function name":
            self._function = _Function(text.strip() if marker == ">" else "")
        elif self._function is None:
            return
        elif part == "parameter name":
            self._key = text.strip() if marker == ">" else ""
            self._function.sound = self._function.sound and self._key != ""
            self._enter("value" if self._key else "between")
        elif part == "value":
            self._function.values[self._key] = text.removeprefix("\n").removesuffix("\n")
        elif text.strip():
            self._function.sound = False

    def _function_over(self) -> None:
        function, self._function = self._function, None
        if function is None or not function.sound:
            return
        schemas = argument_schemas(self._context.tools, function.name)
        texts = {key: json_text(value, schemas.get(key)) for key, value in function.values.items()}
        self._calls.append(ToolCall(function.name, object_text(texts)))
