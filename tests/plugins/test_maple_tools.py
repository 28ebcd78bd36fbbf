"""Maple's tool calls: every rule of the contract, in every cut."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from maple_plugins.events import ContentDelta, ModelFinish, ToolCall
from maple_plugins.fold import Message
from maple_plugins.kit import ParserCase, random_cuts, replay, single_splits
from maple_plugins.parser import ParserContext
from maple_plugins.parsers.hermes import HermesToolParser
from maple_plugins.parsers.maple_tools import MapleToolParser

A = '{"name": "a", "arguments": {}}'
B = '{"name": "b", "arguments": {"x": 1}}'


def _message(raw: str, finish: ModelFinish = "stop") -> Message:
    case = ParserCase(name=raw, raw=raw, finish=finish)
    ways = ([raw], list(raw), *single_splits(raw), *random_cuts(raw, count=5))
    (message,) = {replay(case, pieces, tools=MapleToolParser) for pieces in ways}
    return message


def _names(raw: str, finish: ModelFinish = "stop") -> tuple[str | None, str]:
    """The content, and the names of the calls in a row."""
    message = _message(raw, finish)
    return message.content, "".join(call.name for call in message.calls)


@pytest.mark.parametrize(
    ("raw", "content", "names"),
    [
        # several calls in a block
        (f"<tool_call>{A}{B}</tool_call>", None, "ab"),
        (f"<tool_call>{A}{A}</tool_call>", None, "aa"),
        (f"<tool_call>[{A}, {B}]</tool_call>", None, "ab"),
        (f"<tool_call>[{A}, 5, [{B}]]</tool_call>", None, "a"),
        (f"<tool_call>[{A}, {B}</tool_call>", None, "ab"),
        (f'<tool_call>["</tool_call>", {A}]</tool_call>', None, "a"),
        # what is dropped once there is a good call
        (f"<tool_call>{A} and so on</tool_call>", None, "a"),
        (f"<tool_call>Sure: {A}</tool_call>", None, "a"),
        (f'<tool_call>{A}{{"name": 1}}{B}</tool_call>', None, "ab"),
        (f'<tool_call>{A}{{"name": "b", "arg\n{B}</tool_call>', None, "ab"),
        (f'<tool_call>{{"name": "half", "arg {B}</tool_call>', None, "b"),
        (f"<tool_call>{{{A}}}</tool_call>", None, "a"),
        # no good call
        ("<tool_call></tool_call>", "<tool_call></tool_call>", ""),
        ("x\n<tool_call>\n\n</tool_call>\n\ny", "x\n<tool_call>\n\n</tool_call>\n\ny", ""),
        ('<tool_call>{"f": ' + A + "}</tool_call>", '<tool_call>{"f": ' + A + "}</tool_call>", ""),
        ('<tool_call>{"name": "a", "arguments": NaN}</tool_call>',) * 2 + ("",),
        ("<tool_call>{'name': 'a'}</tool_call>",) * 2 + ("",),
        ('<tool_call>{"name": "a", "arguments": {"s": "line\nbreak"}}</tool_call>',) * 2 + ("",),
        # a half object's arguments are never a call of their own
        ('<tool_call>{"name": "send", "arguments": {"name": "Bob"}</tool_call>',) * 2 + ("",),
        ('<tool_call>{"name": "send", "arguments": {"name": "Bob"} oops}</tool_call>',) * 2 + ("",),
        # closing tags in strings, and in what only looked like one
        (
            '<tool_call>{"name": "a", "arguments": {"s": "</tool_call>\\"</tool_call>"}}</tool_call>',
            None,
            "a",
        ),
        ('<tool_call>{"name": "b</tool_call>\n', '<tool_call>{"name": "b</tool_call>\n', ""),
        (
            f'<tool_call>{{"name": "b</tool_call>\n<tool_call>{A}</tool_call>',
            '<tool_call>{"name": "b</tool_call>',
            "a",
        ),
        (
            f'<tool_call>{{"name": "b</tool_call><tool_call>{A}</tool_call>',
            '<tool_call>{"name": "b</tool_call>',
            "a",
        ),
        (f'<tool_call>{{"name": "b</tool_call>\n\n{A}', f'<tool_call>{{"name": "b</tool_call>\n\n{A}', ""),
        (f'<tool_call>{A}{{"name": "b</tool_call> rest', " rest", "a"),
        (f'<tool_call>{A}{{"name": "b</tool_call> rest"', None, "a"),
        (f'<tool_call>{A} "b</tool_call>"</tool_call>', '"</tool_call>', "a"),
        # opening tags
        ('<tool_call>{"name": "a", "arguments": {"s": "<tool_call>"}}</tool_call>', None, "a"),
        (f"<tool_call>{A}<tool_call>{B}</tool_call>", None, "ab"),
        (f"<tool_call>{A}{B}<tool_call>{B}{A}</tool_call>", None, "ab"),
        (f"<tool_call>{A}<tool_call>{B}<tool_call>{A}</tool_call>", None, "ab"),
        ('<tool_call>{"name": "a"}<tool_call>{"arguments": {}, "name":"a"}</tool_call>', None, "a"),
        (f"<tool_call>{A}<tool_call>{A}</tool_call><tool_call>{A}</tool_call>", None, "aa"),
        (f"<tool_call>{A}<tool_call>oops</tool_call> x", " x", "a"),
        (f"<tool_call>oops\n<tool_call>{A}</tool_call>", "<tool_call>oops", "a"),
        ("<tool_call>oops\n<tool_call>oops</tool_call>", "<tool_call>oops\n<tool_call>oops</tool_call>", ""),
        (f"<tool_call>{A}<tool_call>{A}</tool_call></tool_call>", "</tool_call>", "a"),
        # no closing tag
        (f"x\n<tool_call>{A}\n</tool_c", "x", "a"),
        (f"<tool_call>[{A}, {B}", None, "ab"),
        (f'<tool_call>{A}, {{"name": "b"', None, "a"),
        ("<tool_call>", "<tool_call>", ""),
        ("x\n\n<tool_call>\n", "x\n\n<tool_call>\n", ""),
        # text around
        ("", "", ""),
        ("\n", "\n", ""),
        ("a\n\n<tool_c", "a\n\n<tool_c", ""),
        ("a</tool_call>\n", "a</tool_call>\n", ""),
        (f"\n \n<tool_call>{A}</tool_call>\n \n", "\n  \n", "a"),
        (f"a\n\n<tool_call>{A}</tool_call>\n\n<tool_call>{B}</tool_call>\n\nb\n", "ab\n", "ab"),
        (f"<tool_call>{A}</tool_call>\n<tool_call>oops</tool_call>\n", "<tool_call>oops</tool_call>\n", "a"),
        # </think> behind a block
        (f"<tool_call>{A}</tool_call></think>", None, "a"),
        (f"<tool_call>{A}</tool_call> \n</think>\nx", " \n\nx", "a"),
        (f"<tool_call>{A}</tool_call></think></think>", "</think>", "a"),
        (f"<tool_call>{A}</tool_call></think>\n<tool_call>{B}</tool_call>\n</think>", None, "ab"),
        (f"<tool_call>{A}</tool_call>x</think>", "x</think>", "a"),
        (f"<tool_call>{A}</tool_call>\n</thinker>", "</thinker>", "a"),
        (f"<tool_call>{A}</tool_call>\n</think", "</think", "a"),
        (
            f"<tool_call>{A}</tool_call><tool_call>?</tool_call></think>",
            "<tool_call>?</tool_call></think>",
            "a",
        ),
        ("<tool_call>oops</tool_call></think>", "<tool_call>oops</tool_call></think>", ""),
        ("</think>x", "</think>x", ""),
    ],
)
def test_the_rules(raw: str, content: str | None, names: str) -> None:
    """What each habit of the model becomes when the text ends by EOS or a stop string."""
    assert _names(raw) == (content, names)


@pytest.mark.parametrize(
    ("raw", "content", "names"),
    [
        (f"x\n<tool_call>{A}\n", f"x\n<tool_call>{A}\n", ""),
        (f"<tool_call>{A}</tool_cal", f"<tool_call>{A}</tool_cal", ""),
        (f"<tool_call>[{A}, ", f"<tool_call>[{A}, ", ""),
        (f'<tool_call>{A}{{"b</tool_call> x', f'<tool_call>{A}{{"b</tool_call> x', ""),
        (f"<tool_call>{A}</tool_call>\n<tool_call>{B}", f"<tool_call>{B}", "a"),
        (f"<tool_call>{A}<tool_call>{B}", f"<tool_call>{B}", "a"),
        (f"<tool_call>{A}</tool_call>\n\n", None, "a"),
    ],
)
def test_an_open_block_is_text_at_the_length_limit(raw: str, content: str | None, names: str) -> None:
    """A call counts only once its block is over: a limit may have cut what was to come."""
    assert _names(raw, "length") == (content, names)


def test_a_call_goes_out_with_its_closing_tag() -> None:
    """A call does not wait for the end of the answer, and text is not held by it."""
    parser = MapleToolParser(ParserContext())
    assert list(parser.feed(f"On it.\n<tool_call>{A}")) == [ContentDelta("On it.")]
    assert list(parser.feed("</tool_call>\n")) == [ToolCall("a", "{}")]
    assert list(parser.feed("Done. <to")) == [ContentDelta("Done. ")]
    assert list(parser.feed("ol>")) == [ContentDelta("<tool>")]
    assert list(parser.close("stop")) == []


def test_hermes_knows_no_think() -> None:
    """The same blocks, but </think> has no meaning behind them."""
    raw = f"<tool_call>{A}</tool_call>\n</think>"
    case = ParserCase(name="hermes", raw=raw, content="</think>", calls=(("a", {}),))
    assert replay(case, [raw], tools=HermesToolParser).content == "</think>"


TEXT = st.text("ab \n", max_size=6)
CALL = st.builds(
    ToolCall,
    st.text(min_size=1, max_size=4),
    st.dictionaries(st.text(max_size=3), st.text('<tool_call>/\\"{}[]\n', max_size=14), max_size=2).map(
        json.dumps
    ),
)
BODY = st.lists(CALL, min_size=1, max_size=3)
JUNK = st.sampled_from(["", "oops", "[1, 2]", '{"name": ""}', "{", '{"name": "a", ', "\n", "</think>"])
GOOD = st.tuples(
    BODY, JUNK, st.sampled_from(["", ", ", "\n"]), st.sampled_from(["", "\n</think>\n\n", " \n</think>"])
)
PART = st.one_of(TEXT, GOOD, JUNK.map(lambda junk: (junk,)))


def _call_text(call: ToolCall) -> str:
    return f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}'


@given(st.lists(PART, max_size=6), st.integers(0, 2**32))
def test_blocks_and_text_are_told_apart(parts: list[str | tuple[Any, ...]], seed: int) -> None:
    """Any mixture of text, good blocks and bad ones gives the calls of the good ones and all other text.

    The expected content is what the contract says, by regular expressions over text with marks for blocks.
    """
    raw, marked = "", ""
    calls: list[ToolCall] = []
    for part in parts:
        if isinstance(part, str):
            raw, marked = raw + part, marked + part
        elif len(part) == 1:
            raw, marked = (text + f"<tool_call>{part[0]}</tool_call>" for text in (raw, marked))
        else:
            body, junk, between, after = part
            raw += f"<tool_call>{between.join(map(_call_text, body))}{junk}</tool_call>{after}"
            marked += f"\0{after}"
            calls += body
    content = re.sub(r"\n*\0\n*", "", re.sub(r"\0(\s*)</think>", r"\0\1", marked))
    case = ParserCase(name=raw, raw=raw)
    for pieces in ([raw], list(raw), *random_cuts(raw, count=3, seed=seed)):
        message = replay(case, pieces, tools=MapleToolParser)
        assert message == Message(
            reasoning=None, content=None if calls and not content else content, calls=tuple(calls)
        )
