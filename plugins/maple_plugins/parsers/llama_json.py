"""``llama_json``: the tool calls of Llama 3 templates, an answer that is a bare JSON object."""

from __future__ import annotations

from typing import ClassVar

from maple_plugins.blocks import Block, BlockEnd, BlockToolParser
from maple_plugins.events import ModelFinish
from maple_plugins.json_calls import read_call
from maple_plugins.json_scan import WHITE_SPACE, JsonScan
from maple_plugins.parser import ParserContext

PYTHON_TAG = "<|python_tag|>"
_ARGUMENTS = ("parameters", "arguments")


class LlamaJsonToolParser(BlockToolParser):
    """Reads ``{"name": …, "parameters": {…}}`` at the start of the answer or behind ``<|python_tag|>``.

    More calls may follow, after a semicolon or white space. An object that names no parameters is an answer
    in JSON, not a call, and an object further on in the answer is text.
    """

    markers: ClassVar[tuple[str, ...]] = (PYTHON_TAG, "{")

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._block = _CallBlock(before="\n")

    def open(self) -> Block:
        """Begin to read a call behind the tag."""
        return _CallBlock(PYTHON_TAG, before=WHITE_SPACE)


class _CallBlock(Block):
    """At most one call.

    ``before`` are the characters that may stand before it, ``opener`` is what stood before those; with
    ``follows`` a call came directly before.
    """

    def __init__(self, opener: str = "", *, before: str, follows: bool = False) -> None:
        self._opener = opener
        self._before = before
        self._follows = follows
        self._value: JsonScan | None = None
        self._spaces: list[str] = []

    def feed(self, text: str, at: int) -> tuple[int, BlockEnd | None]:
        if self._value is not None:
            return self._within(self._value, text, at)
        start = len(text) - len(text[at:].lstrip(self._before))
        self._spaces.append(text[at:start])
        if start == len(text):
            return start, None
        if text[start] != "{":
            return start, self._as_text("")
        self._value = JsonScan("{")
        return start + 1, None

    def close(self, finish: ModelFinish) -> BlockEnd:
        if self._value is None and self._follows:
            return BlockEnd()
        return self._as_text("" if self._value is None else self._value.text)

    def _within(self, value: JsonScan, text: str, at: int) -> tuple[int, BlockEnd | None]:
        at = value.feed(text, at)
        if value.state == "open":
            return at, None
        call = read_call(value.text, _ARGUMENTS, required=True) if value.state == "complete" else None
        if call is not None:
            return at, BlockEnd(calls=(call,), follow=_CallBlock(before=WHITE_SPACE + ";", follows=True))
        return at, self._as_text(value.text)

    def _as_text(self, rest: str) -> BlockEnd:
        return BlockEnd(text=self._opener + "".join(self._spaces) + rest)
