"""hermes, qwen_xml, mistral, llama_json and none beyond the handed cases, in every cut."""

from __future__ import annotations

import json

import pytest
from maple_plugins.events import ContentDelta, ModelFinish, ToolCall
from maple_plugins.fold import Message
from maple_plugins.kit import ParserCase, random_cuts, replay, single_splits
from maple_plugins.parser import ParserContext, ReasoningParser, ToolParser, ToolSpec
from maple_plugins.parsers.llama_json import LlamaJsonToolParser
from maple_plugins.parsers.mistral import MistralToolParser
from maple_plugins.parsers.none import NoReasoning, NoTools
from maple_plugins.parsers.qwen_xml import QwenXmlToolParser


def _message(
    tools: type[ToolParser], raw: str, finish: ModelFinish = "stop", specs: tuple[ToolSpec, ...] = ()
) -> Message:
    case = ParserCase(name=raw, raw=raw, finish=finish, tools=specs)
    ways = ([raw], list(raw), *single_splits(raw), *random_cuts(raw, count=5))
    (message,) = {replay(case, pieces, tools=tools) for pieces in ways}
    return message


def _folded(tools: type[ToolParser], raw: str, finish: ModelFinish = "stop") -> tuple[str | None, str]:
    """The content, and the calls as ``name{arguments}`` in a row."""
    message = _message(tools, raw, finish)
    return message.content, " ".join(call.name + call.arguments for call in message.calls)


@pytest.mark.parametrize(
    ("raw", "content", "calls"),
    [
        ("[TOOL_CALLS] f [ARGS]{}", "[TOOL_CALLS] f [ARGS]{}", ""),
        ("x\n[TOOL_CALLS] f[ARGS] {} \ny", "x \ny", "f{}"),
        ("[TOOL_CALLS]f[ARGS]{}\n\nDone.", "Done.", "f{}"),
        ("[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS][ARGS]{}", ""),
        ("[TOOL_CALLS]f[ARGS]oops", "[TOOL_CALLS]f[ARGS]oops", ""),
        ("[TOOL_CALLS]f[ARGS][1]", "[TOOL_CALLS]f[ARGS][1]", ""),
        ('[TOOL_CALLS]f[ARGS]{"x": oops}', '[TOOL_CALLS]f[ARGS]{"x": oops}', ""),
        ('[TOOL_CALLS]f[ARGS]{"x": 1', '[TOOL_CALLS]f[ARGS]{"x": 1', ""),
        ("[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]", ""),
        ("[TOOL_CALLS]f[AR", "[TOOL_CALLS]f[AR", ""),
        ("[TOOL_CALLS]", "[TOOL_CALLS]", ""),
        ("[TOOL_CALLS] is a marker", "[TOOL_CALLS] is a marker", ""),
        ("[TOOL_CALLS]f]g[ARGS]{}", "[TOOL_CALLS]f]g[ARGS]{}", ""),
        ("[TOOL_CALLS]f[TOOL_CALLS]g[ARGS]{}", "[TOOL_CALLS]f", "g{}"),
        ("[TOOL_CALLS][TOOL_CALLS]g[ARGS]{}", "[TOOL_CALLS]", "g{}"),
        ("[TOOL_CALLS][[TOOL_CALLS]g[ARGS]{}", "[TOOL_CALLS][", "g{}"),
        ("[TOOL_CALLS][", "[TOOL_CALLS][", ""),
        ('[TOOL_CALLS]["x [TOOL_CALLS]g[ARGS]{}', '[TOOL_CALLS]["x ', "g{}"),
        ('[TOOL_CALLS]["x [TOOL_CALLS]g[ARGS]{}\n', '[TOOL_CALLS]["x ', "g{}"),
        ('[TOOL_CALLS]["[TOOL_CALLS]g[ARGS]{}"]', '[TOOL_CALLS]["[TOOL_CALLS]g[ARGS]{}"]', ""),
        ('[TOOL_CALLS][{"name": "f"}, 5, {"arguments": {}}] x', " x", "f{}"),
        ('[TOOL_CALLS][{"name": "f"}, oops]', "oops]", "f{}"),
        ('[TOOL_CALLS][{"name": "f"}', None, "f{}"),
        ('[TOOL_CALLS] [{"name": "f", "arguments": "{\\"x\\": 1}"}]', None, 'f{"x": 1}'),
        ("[TOOL_CALLS][]", "[TOOL_CALLS][]", ""),
        ("a [TOOL] [TOOL_CALL", "a [TOOL] [TOOL_CALL", ""),
    ],
)
def test_mistral(raw: str, content: str | None, calls: str) -> None:
    """Both forms, and all that falls short of them."""
    assert _folded(MistralToolParser, raw) == (content, calls)


@pytest.mark.parametrize(
    ("raw", "content", "calls"),
    [
        ('[TOOL_CALLS][{"name": "f"}', '[TOOL_CALLS][{"name": "f"}', ""),
        ('[TOOL_CALLS][{"name": "f"}]', None, "f{}"),
        ("[TOOL_CALLS] f[AR", "[TOOL_CALLS] f[AR", ""),
        ("[TOOL_CALLS]f[ARGS] ", "[TOOL_CALLS]f[ARGS] ", ""),
    ],
)
def test_mistral_at_the_length_limit(raw: str, content: str | None, calls: str) -> None:
    """A list that may have gone on is text."""
    assert _folded(MistralToolParser, raw, "length") == (content, calls)


@pytest.mark.parametrize(
    ("raw", "content", "calls"),
    [
        ('\n\n{"name": "f", "parameters": {"x": 1}}\n', None, 'f{"x": 1}'),
        ('{"name": "f", "arguments": {}}', None, "f{}"),
        ('{"name": "f", "parameters": null}', None, "f{}"),
        ('{"name": "Alice"}', '{"name": "Alice"}', ""),
        ('{"name": "f", "parameters": {}', '{"name": "f", "parameters": {}', ""),
        ('{"name": "f", "parameters": {}} is it', " is it", "f{}"),
        ('{"name": "f", "parameters": {}}\n\nDone.', "Done.", "f{}"),
        ('{"name": "f", "parameters": {}};', None, "f{}"),
        ('{"name": "f", "parameters": {}}; oops', "; oops", "f{}"),
        ('{"name": "f", "parameters": {}}; {"a": 1}', '; {"a": 1}', "f{}"),
        ('{"name": "f", "parameters": {}}\n{"name": "g", "parameters": {}}', None, "f{} g{}"),
        ('{"name": "f", "parameters": {}}; {"name": "g", ', '; {"name": "g", ', "f{}"),
        ('<|python_tag|> {"name": "f", "parameters": {}}', None, "f{}"),
        ('So:\n<|python_tag|>{"name": "f", "parameters": {}}', "So:", "f{}"),
        ('\n<|python_tag|>{"name": "f", "parameters": {}}', None, "f{}"),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", ""),
        ("<|python_tag|>\n", "<|python_tag|>\n", ""),
        ('x {"name": "f", "parameters": {}}', 'x {"name": "f", "parameters": {}}', ""),
        ('[{"name": "f", "parameters": {}}]', '[{"name": "f", "parameters": {}}]', ""),
        ('{oops {"name": "f", "parameters": {}}', '{oops {"name": "f", "parameters": {}}', ""),
        ("\n\nx\n", "\n\nx\n", ""),
        ("\n", "\n", ""),
        ("", "", ""),
    ],
)
def test_llama_json(raw: str, content: str | None, calls: str) -> None:
    """Bare objects at the start, tagged ones anywhere, and JSON that is an answer."""
    assert _folded(LlamaJsonToolParser, raw) == (content, calls)


@pytest.mark.parametrize(
    ("raw", "content", "calls"),
    [
        ('{"name": "f", "parameters": {}', '{"name": "f", "parameters": {}', ""),
        ('{"name": "f", "parameters": {}}', None, "f{}"),
        ('<|python_tag|>{"na', '<|python_tag|>{"na', ""),
    ],
)
def test_llama_json_at_the_length_limit(raw: str, content: str | None, calls: str) -> None:
    """An object is over with its last bracket, and text before that."""
    assert _folded(LlamaJsonToolParser, raw, "length") == (content, calls)


def _xml(inner: str) -> str:
    return f"<tool_call>\n{inner}\n</tool_call>"


F = "<function=f>\n</function>"


@pytest.mark.parametrize(
    ("raw", "content", "calls"),
    [
        (_xml(F + "\n<function=g>\n</function>"), None, "f{} g{}"),
        (_xml("Sure:\n" + F + " there"), None, "f{}"),
        (_xml("<function=f>\n<parameter=a>\n\n\n</parameter>\n</function>"), None, 'f{"a": "\\n"}'),
        (_xml("<function=f><parameter=a>x</parameter></function>"), None, 'f{"a": "x"}'),
        (
            _xml("<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>"),
            None,
            'f{"a": 2}',
        ),
        (
            _xml("<function=f><parameter=a></tool_call></parameter></function>"),
            None,
            'f{"a": "</tool_call>"}',
        ),
        (
            _xml('<function=f><parameter=é"><tool_call></parameter></function>'),
            None,
            'f{"é\\"": "<tool_call>"}',
        ),
        (_xml("<function=f>oops</function>"),) * 2 + ("",),
        (_xml("<function=></function>"),) * 2 + ("",),
        (_xml("<function=f\n></function>"),) * 2 + ("",),
        (_xml("<function=f<parameter=a>1</parameter></function>"),) * 2 + ("",),
        (_xml("<function=f><parameter=>1</parameter></function>"),) * 2 + ("",),
        (_xml("<function=f><parameter=a</function>"),) * 2 + ("",),
        (_xml("<parameter=a>1</parameter>"),) * 2 + ("",),
        (_xml("</function>"),) * 2 + ("",),
        (_xml("<function=f><function=g></function>"), None, "g{}"),
        (_xml("<function=f></function><function=g>"), None, "f{}"),
        ("<tool_call><function=f></function>", None, "f{}"),
        ("<tool_call><function=f></fun",) * 2 + ("",),
        ("<tool_call><function=f><parameter=a>1</tool_call>",) * 2 + ("",),
        (f"<tool_call>{F}<tool_call>{F}</tool_call>", None, "f{}"),
        (f"<tool_call>{F}<tool_call><function=g></function></tool_call>", None, "f{} g{}"),
        (f"<tool_call><function=f<tool_call>{F}</tool_call>", "<tool_call><function=f", "f{}"),
        (F, F, ""),
    ],
)
def test_qwen_xml(raw: str, content: str | None, calls: str) -> None:
    """Functions, parameters and all that falls short of them."""
    assert _folded(QwenXmlToolParser, raw) == (content, calls)


def test_qwen_xml_at_the_length_limit() -> None:
    """An open block is text, whatever it holds."""
    assert _folded(QwenXmlToolParser, f"<tool_call>{F}</tool", "length") == (f"<tool_call>{F}</tool", "")


def test_qwen_xml_values_have_the_types_of_the_schema() -> None:
    """What the schema calls a string stays one, and what it calls an object is one."""
    properties = {"zip": {"type": "string"}, "days": {"type": "integer"}, "options": {"type": "object"}}
    spec = ToolSpec("f", {"type": "object", "properties": properties})
    values = {"zip": "01234", "days": " 3 ", "options": '{"a": [1]}', "other": "true"}
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    raw = _xml(f"<function=f>\n{inner}</function>")
    (call,) = _message(QwenXmlToolParser, raw, specs=(ToolSpec("g"), spec)).calls
    expected = {"zip": "01234", "days": 3, "options": {"a": [1]}, "other": True}
    assert call == ToolCall("f", json.dumps(expected))


def test_none_passes_everything_on() -> None:
    """Text goes through as it comes: no trimming, no holding."""
    for parser in (NoTools(ParserContext()), NoReasoning(ParserContext(in_reasoning=True))):
        assert list(parser.feed("\n<think>")) == [ContentDelta("\n<think>")]
        assert list(parser.close("length")) == []


def test_none_knows_no_reasoning() -> None:
    """Whatever the prompt says, the text is the answer."""
    assert NoReasoning(ParserContext(in_reasoning=True)).reasoning_end == 0
    assert isinstance(NoReasoning(ParserContext()), ReasoningParser)
    assert NoReasoning.prompt_ends_inside("<think>\n") is False
