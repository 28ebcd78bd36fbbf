"""What must hold for any text at all, however it is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from maple_plugins.compose import Chain
from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ReasoningDelta, ToolCall
from maple_plugins.fold import fold
from maple_plugins.kit import ParserCase, replay
from maple_plugins.parser import ParserContext, ToolParser, ToolSpec
from maple_plugins.parsers.hermes import HermesToolParser
from maple_plugins.parsers.llama_json import LlamaJsonToolParser
from maple_plugins.parsers.maple_tools import MapleToolParser
from maple_plugins.parsers.mistral import MistralToolParser
from maple_plugins.parsers.none import NoReasoning, NoTools
from maple_plugins.parsers.qwen_xml import QwenXmlToolParser
from maple_plugins.parsers.think import ThinkParser

PARSERS: dict[str, type[ToolParser]] = {
    "maple": MapleToolParser,
    "hermes": HermesToolParser,
    "qwen_xml": QwenXmlToolParser,
    "mistral": MistralToolParser,
    "llama_json": LlamaJsonToolParser,
    "none": NoTools,
}
FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", ";"),
    *("<function=", "f>", "</function>", "<parameter=", "k>", "</parameter>", "<tool", "</", "_call>", ">"),
    *(
        '{"name": "f", "arguments": {}}',
        '{"name": "g", "parameters": {"x": [1, "</tool_call>"]}}',
        '{"name": "',
    ),
    *(
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ":",
        ",",
        "1",
        "-",
        "true",
        "null",
        "\n",
        "\n\n",
        " ",
        "x",
        "é🍁",
        "\x00",
    ),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join)
CUTS = st.lists(st.integers(0, 300), max_size=10)
FINISHES = st.sampled_from(["stop", "length"])


def _cut(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted({cut % len(text) for cut in cuts} - {0}), len(text)] if text else [0]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def _case(raw: str, finish: ModelFinish, *, in_reasoning: bool = False) -> ParserCase:
    spec = ToolSpec("f", {"properties": {"k": {"type": ["integer", "array"]}}})
    return ParserCase(name=raw, raw=raw, finish=finish, in_reasoning=in_reasoning, tools=(spec,))


@pytest.mark.parametrize("parser", PARSERS)
@given(raw=TEXTS, cuts=CUTS, finish=FINISHES, in_reasoning=st.booleans())
def test_cuts_make_no_difference(
    parser: str, raw: str, cuts: list[int], finish: ModelFinish, in_reasoning: bool
) -> None:
    """Whole, by characters or cut anywhere, a text gives one message."""
    case = _case(raw, finish, in_reasoning=in_reasoning)
    messages = {
        replay(case, pieces, reasoning=ThinkParser, tools=PARSERS[parser])
        for pieces in ([raw], list(raw), _cut(raw, cuts))
    }
    assert len(messages) == 1


@pytest.mark.parametrize("parser", PARSERS)
@given(raw=TEXTS, finish=FINISHES)
def test_without_a_call_nothing_is_lost(parser: str, raw: str, finish: ModelFinish) -> None:
    """A text in which no call is found comes out byte for byte."""
    message = replay(_case(raw, finish), [raw], tools=PARSERS[parser])
    assert message.calls or message.content == raw


@pytest.mark.parametrize("parser", PARSERS)
@given(raw=TEXTS, finish=FINISHES)
def test_content_is_taken_from_the_text_in_order(parser: str, raw: str, finish: ModelFinish) -> None:
    """Nothing is made up, doubled or moved: the content is the text with parts left out."""
    rest = iter(raw)
    content = replay(_case(raw, finish), [raw], tools=PARSERS[parser]).content or ""
    assert all(char in rest for char in content)


@pytest.mark.parametrize("parser", PARSERS)
@given(raw=TEXTS, finish=FINISHES)
def test_calls_can_always_be_sent(parser: str, raw: str, finish: ModelFinish) -> None:
    """Every call has a name, and arguments that are the JSON text of an object, trimmed, in valid UTF-8."""
    for call in replay(_case(raw, finish), [raw], tools=PARSERS[parser]).calls:
        assert call.name.encode()
        assert call.arguments.encode() == call.arguments.strip().encode()
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("parser", PARSERS)
@given(raw=TEXTS, in_reasoning=st.booleans())
def test_what_is_sent_stays_and_is_never_empty(parser: str, raw: str, in_reasoning: bool) -> None:
    """At any time, what was sent is a beginning of what the message becomes."""
    context = _case(raw, "stop", in_reasoning=in_reasoning).context
    chain = Chain(ThinkParser(context), PARSERS[parser](context))
    events: list[ParserEvent] = []
    stages = []
    for char in raw:
        events += chain.feed(char)
        stages.append(fold(events))
    events += chain.close("stop")
    final = fold(events)
    assert all(isinstance(event, ToolCall) or event.text for event in events)
    for stage in stages:
        assert (final.reasoning or "").startswith(stage.reasoning or "")
        assert (final.content or "").startswith(stage.content or "")
        assert final.calls[: len(stage.calls)] == stage.calls


@given(raw=TEXTS)
def test_reasoning_comes_before_the_answer(raw: str) -> None:
    """The latch is one-way: no reasoning follows content, whatever markers the answer holds."""
    case = _case(raw, "stop", in_reasoning=True)
    chain = Chain(ThinkParser(case.context), NoTools(case.context))
    kinds = [type(event) for char in raw for event in chain.feed(char)]
    kinds += [type(event) for event in chain.close("stop")]
    assert kinds == sorted(kinds, key=[ReasoningDelta, ContentDelta].index)
    assert (chain.reasoning_end is None) == ("</think>" not in raw)


@pytest.mark.parametrize("parser", PARSERS)
@given(text=st.text("<>/[]|{;_ toolcaTOOLCALLSpython\n", max_size=60))
def test_little_is_held_outside_blocks(parser: str, text: str) -> None:
    """While no marker was fed, no more waits than the longest marker and the newlines."""
    context = ParserContext()
    reader = Chain(NoReasoning(context), PARSERS[parser](context))
    markers = PARSERS[parser].markers
    sent = ""
    for at, char in enumerate(text):
        fed = text[: at + 1]
        if any(marker in fed for marker in markers):
            break
        sent += fold(reader.feed(char)).content or ""
        held = fed[len(sent) :]
        assert fed.startswith(sent)
        assert len(held.lstrip("\n")) < max(map(len, markers), default=1)
