"""Delimited formats: one opening and one closing marker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest
from maple_plugins.blocks import DelimitedToolParser
from maple_plugins.compose import Chain
from maple_plugins.events import ModelFinish, ToolCall
from maple_plugins.json_calls import is_json
from maple_plugins.kit import ParserCase, random_cuts, replay, single_splits
from maple_plugins.parser import MarkupFault, ParserContext, ToolParser
from maple_plugins.parsers.llama_json import LlamaJsonToolParser
from maple_plugins.parsers.maple_tools import MapleToolParser
from maple_plugins.parsers.mistral import MistralToolParser
from maple_plugins.parsers.none import NoReasoning, NoTools
from maple_plugins.parsers.qwen_xml import QwenXmlToolParser


class Angles(DelimitedToolParser):
    """``<<f>>`` calls f, ``<<f g>>`` both."""

    markers: ClassVar[tuple[str, ...]] = ("<<", ">>")

    def calls(self, body: str) -> Sequence[ToolCall]:
        return [ToolCall(name, "{}") for name in body.split() if name.isalpha()]


@pytest.mark.parametrize(
    ("raw", "finish", "content", "names"),
    [
        ("a\n<<f>>\nb", "stop", "ab", "f"),
        ("<<f g>><<h>>", "stop", None, "fgh"),
        ("<<1>>\n<<f>>", "stop", "<<1>>", "f"),
        ("a\n<<>>\n", "stop", "a\n<<>>\n", ""),
        ("<<f <<g>>>", "stop", ">", "f"),
        ("<<f", "stop", None, "f"),
        ("<<1>", "stop", "<<1>", ""),
        ("<<f", "length", "<<f", ""),
        ("<<f>", "length", "<<f>", ""),
        ("a < b <", "stop", "a < b <", ""),
    ],
)
def test_the_first_closing_marker_ends_a_block(
    raw: str, finish: ModelFinish, content: str | None, names: str
) -> None:
    """A block with calls is replaced by them, any other is text."""
    case = ParserCase(name=raw, raw=raw, finish=finish)
    for pieces in ([raw], list(raw), *single_splits(raw)):
        message = replay(case, pieces, tools=Angles)
        assert (message.content, "".join(call.name for call in message.calls)) == (content, names)


@pytest.mark.parametrize(
    ("tools", "raw", "finish", "fault"),
    [
        (Angles, "a < b", "stop", None),
        (Angles, "<<f>>", "stop", None),
        (Angles, "<<f", "stop", None),
        (Angles, "<<1>> and <<f>>", "stop", "no_call"),
        (Angles, "<<1>> and <<f", "length", "no_call"),
        (Angles, "<<1", "stop", "unclosed"),
        (Angles, "<<f", "length", "cut_off"),
        (MapleToolParser, '<tool_call>{"name": "f"}, what?</tool_call>', "stop", None),
        (MapleToolParser, '<tool_call>{"nam": "f"}</tool_call>', "stop", "no_call"),
        (MapleToolParser, '<tool_call>{"name": ', "stop", "unclosed"),
        (QwenXmlToolParser, "<tool_call>\n<function=></function></tool_call>", "stop", "no_call"),
        (MistralToolParser, "[TOOL_CALLS] none yet", "stop", "no_call"),
        (LlamaJsonToolParser, '{"answer": 42}', "stop", None),
        (LlamaJsonToolParser, '<|python_tag|>{"answer": 42}', "stop", "no_call"),
        (NoTools, "<tool_call>", "stop", None),
    ],
)
def test_a_block_that_comes_back_as_text_is_told_of(
    tools: type[ToolParser], raw: str, finish: ModelFinish, fault: MarkupFault | None
) -> None:
    """The first fault counts, however the text is cut; an answer without the format's marker has none."""
    for pieces in ([raw], list(raw), *random_cuts(raw, count=10)):
        chain = Chain(NoReasoning(ParserContext()), tools(ParserContext()))
        for piece in pieces:
            chain.feed(piece)
        chain.close(finish)
        assert chain.fault == fault


class Quoting(DelimitedToolParser):
    """``<<{...}>>`` calls f with the object."""

    markers: ClassVar[tuple[str, ...]] = ("<<", ">>")

    def calls(self, body: str) -> Sequence[ToolCall]:
        return [ToolCall("f", body)] if is_json(body, "{") else []


@pytest.mark.parametrize(
    ("raw", "content", "arguments"),
    [
        ('<<{"x": ">>"}>>', None, '{"x": ">>"}'),
        (r'<<{"x": "\\">>', r'<<{"x": "\\">>', None),
        (r'<<{"x": "\" >> "}>>y', "y", r'{"x": "\" >> "}'),
        ('<<{"x": "\n>><<{}>>', '<<{"x": "\n>>', "{}"),
        ('<<{"x": ">> b', '<<{"x": ">> b', None),
    ],
    ids=["closer", "escape at the end", "escaped quote", "a line end ends a string", "no end"],
)
def test_a_closing_marker_in_a_string_is_the_strings(
    raw: str, content: str | None, arguments: str | None
) -> None:
    """However the text is cut; a string that JSON does not allow holds nothing back."""
    case = ParserCase(name="quoted", raw=raw)
    for pieces in ([raw], list(raw), *single_splits(raw)):
        message = replay(case, pieces, tools=Quoting)
        assert message.content == content
        assert [call.arguments for call in message.calls] == ([] if arguments is None else [arguments])
