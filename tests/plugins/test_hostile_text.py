"""Text made to hurt: every parser takes it in linear time, and without Python's stack.

hermes is left out, since it reads as maple does.
"""

from __future__ import annotations

import sys

import pytest
from maple_plugins.fold import Message
from maple_plugins.kit import ParserCase, replay
from maple_plugins.parser import ToolParser
from maple_plugins.parsers.llama_json import LlamaJsonToolParser
from maple_plugins.parsers.maple_tools import MapleToolParser
from maple_plugins.parsers.mistral import MistralToolParser
from maple_plugins.parsers.qwen_xml import QwenXmlToolParser
from maple_plugins.parsers.think import ThinkParser

PARSERS: dict[str, type[ToolParser]] = {
    "maple": MapleToolParser,
    "qwen_xml": QwenXmlToolParser,
    "mistral": MistralToolParser,
    "llama_json": LlamaJsonToolParser,
}
ENDLESS = {
    "braces": ("<tool_call>", "{"),
    "brackets": ("[TOOL_CALLS]", "["),
    "opening tags": ("", "<tool_call>"),
    "closing tags": ("<tool_call>", "</tool_call>"),
    "empty blocks": ("", "<tool_call></tool_call>"),
    "half tags": ("", "\n<tool_call"),
    "nested keys": ("<tool_call>", '{"a":'),
    "quoted tags": ("", '<tool_call>{"'),
    "tags in strings": ('<tool_call>["<tool_call>["', '","'),
    "strings in a list": ('<tool_call>["', '","'),
    "escapes": ('<tool_call>{"a":"', '\\"{'),
    "digits": ("<tool_call>[", "1"),
    "points": ("<tool_call>[", "1."),
    "empty objects": ("<tool_call>", "{}"),
    "open calls": ("", '<tool_call>{"name":"a"}'),
    "calls in a block": ("<tool_call>", '{"name":"a"},'),
    "newlines": ("", "\n"),
    "think": ("", "</think>"),
    "functions": ("", "<tool_call><function=f><parameter=a></tool_call>"),
    "names": ("<tool_call>", "<function=f"),
    "lists": ("", '[TOOL_CALLS]["'),
    "openers in strings": ('[TOOL_CALLS]["', '[TOOL_CALLS]x","'),
    "bare calls": ("", '{"name":"f","parameters":{}};'),
    "separators": ('{"name":"f","parameters":{}}', " ;"),
    "python tags": ("", "<|python_tag|>{"),
}


class _Counter:
    """Counts calls of Python functions: a measure of work that no other load on the machine can change."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _frame: object, event: str, _argument: object) -> None:
        self.calls += event == "call"


def _work(tools: type[ToolParser], pieces: list[str]) -> int:
    counter = _Counter()
    case = ParserCase(name="hostile", raw="".join(pieces))
    previous = sys.getprofile()
    sys.setprofile(counter)
    try:
        replay(case, pieces, tools=tools)
    finally:
        sys.setprofile(previous)
    return counter.calls


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("parser", PARSERS)
def test_work_grows_with_the_text(parser: str, kind: str) -> None:
    """Four times the text takes about four times the work, fed whole and by characters."""
    start, unit = ENDLESS[kind]
    small, large = (start + unit * (size // len(unit)) for size in (1_000, 4_000))
    for cut in (list, lambda text: [text]):
        assert _work(PARSERS[parser], cut(large)) <= 5 * _work(PARSERS[parser], cut(small)) + 100


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("parser", PARSERS)
def test_a_large_text_is_taken(parser: str, kind: str) -> None:
    """20,000 characters in pieces of five neither raise nor stall, and cuts make no difference."""
    start, unit = ENDLESS[kind]
    raw = start + unit * (20_000 // len(unit))
    case = ParserCase(name=kind, raw=raw)
    pieces = [raw[at : at + 5] for at in range(0, len(raw), 5)]
    assert replay(case, pieces, tools=PARSERS[parser]) == replay(case, [raw], tools=PARSERS[parser])


@pytest.mark.parametrize(("size", "piece"), [(1_000_000, 1_000_000), (200_000, 5)])
def test_a_megabyte(size: int, piece: int) -> None:
    """A megabyte of opening brackets in a string that never ends comes out as it went in."""
    raw = '<tool_call>{"a": "' + "{" * size
    case = ParserCase(name="braces", raw=raw)
    pieces = (raw[at : at + piece] for at in range(0, len(raw), piece))
    assert replay(case, pieces, tools=MapleToolParser) == Message(reasoning=None, content=raw)


@pytest.mark.parametrize("unit", ["<think>", "</thin", "\n", "\n</think"])
def test_reasoning_of_any_kind_is_taken(unit: str) -> None:
    """Half markers and newlines without end are reasoning, but for the newlines at its ends."""
    raw = unit * 5_000
    case = ParserCase(name=unit, raw=raw, in_reasoning=True, finish="length")
    message = replay(case, raw, reasoning=ThinkParser)
    assert (message.reasoning or "") == raw.removeprefix("<think>").strip("\n")


def test_deep_arguments_are_text() -> None:
    """Nesting beyond the limit is no call, and no RecursionError."""
    raw = '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 50_000 + "1" + "}" * 50_001 + "</tool_call>"
    assert replay(ParserCase(name="deep", raw=raw), [raw], tools=MapleToolParser).content == raw
