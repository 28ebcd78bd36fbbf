"""What an answer is to be, from every spelling of it."""

from __future__ import annotations

from typing import Any

import pytest
from maple_protocols.adapter import Policy
from maple_protocols.ask import AnswerForm, ForcedCalls
from maple_protocols.errors import InvalidField
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.completions import CompletionsAdapter
from maple_protocols.openai.responses import ResponsesAdapter

EXTENDED, REFERENCE = Policy(vocabulary=100, level="extended"), Policy(vocabulary=100)
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(**fields: Any) -> AnswerForm | None:
    return ChatAdapter().structure({"messages": HI, **fields}, EXTENDED).form


def named(schema: object = SCHEMA) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def test_each_spelling_is_one_form() -> None:
    """With the field that a schema which does not compile is blamed on."""
    assert chat(response_format={"type": "text"}) is None
    assert chat(response_format={"type": "json_object"}) == AnswerForm(kind="object", param="response_format")
    form = AnswerForm(kind="schema", param="response_format.json_schema.schema", value=SCHEMA)
    assert chat(response_format=named()) == form
    assert chat(response_format={"type": "json_schema", "json_schema": {"name": "x"}}) is not None
    flat = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    ask = ResponsesAdapter().structure({"input": "hi", "text": {"format": flat}}, EXTENDED)
    assert ask.form == AnswerForm(kind="schema", param="text.format.schema", value=SCHEMA)
    assert ask.echo["text"] == {"format": flat}


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [("json", SCHEMA, "schema"), ("regex", "a+", "regex"), ("grammar", 'start: "a"', "grammar")],
)
def test_structured_outputs_have_one_of_their_members(name: str, value: object, kind: Any) -> None:
    """On chat and completions; it goes before response_format."""
    given = {"structured_outputs": {name: value, "choice": None}}
    form = AnswerForm(kind=kind, param=f"structured_outputs.{name}", value=value)
    assert chat(**given, response_format={"type": "json_object"}) == form
    assert CompletionsAdapter().structure({"prompt": "x", **given}, EXTENDED).form == form


def test_a_choice_is_of_strings() -> None:
    assert chat(structured_outputs={"choice": ["a", "b"]}) == AnswerForm(
        kind="choice", param="structured_outputs.choice", value=("a", "b")
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": named(3)}, "response_format.json_schema.schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"xml": 1}}, "structured_outputs"),
        ({"structured_outputs": {"json": 1}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidField) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_at_the_reference_level_nothing_is_enforced() -> None:
    """What the reference takes has no effect, and the client is told; what it refuses names the setting."""
    fields = {"response_format": {"type": "json_object"}, "structured_outputs": {"any": "thing"}}
    ask = ChatAdapter().structure({"messages": HI, **fields}, REFERENCE)
    assert (ask.form, ask.ignored) == (None, ("response_format", "structured_outputs"))
    for given, adapter, body in (
        ({"response_format": named()}, ChatAdapter(), {"messages": HI}),
        ({"text": {"format": {"type": "json_schema"}}}, ResponsesAdapter(), {"input": "hi"}),
    ):
        with pytest.raises(InvalidField, match="--api-level extended"):
            adapter.structure({**body, **given}, REFERENCE)


TOOLS = [
    {"type": "function", "function": {"name": "look", "strict": True}},
    {"type": "function", "function": {"name": "other", "strict": None}},
]
LOOK = frozenset({"look"})


@pytest.mark.parametrize(
    ("fields", "forced"),
    [
        ({"tool_choice": "auto"}, None),
        ({}, None),
        ({"tool_choice": "required"}, ForcedCalls(strict=LOOK)),
        ({"tool_choice": "any", "parallel_tool_calls": False}, ForcedCalls(single=True, strict=LOOK)),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, ForcedCalls(strict=LOOK)),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"name": "look"}]}},
            ForcedCalls(strict=LOOK),
        ),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "look"}]}}, None),
    ],
)
def test_choices_that_force_calls(fields: dict[str, Any], forced: ForcedCalls | None) -> None:
    """At the extended level; at the reference level none does."""
    body = {"messages": HI, "tools": TOOLS, **fields}
    assert ChatAdapter().structure(body, EXTENDED).forced_calls == forced
    if fields.get("tool_choice") == "required":
        assert ChatAdapter().structure(body, REFERENCE).forced_calls is None


def test_forced_calls_on_responses() -> None:
    """From tools in the flat shape."""
    flat = [{"type": "function", "name": "look", "strict": True}]
    ask = ResponsesAdapter().structure({"input": "hi", "tools": flat, "tool_choice": "required"}, EXTENDED)
    assert ask.forced_calls == ForcedCalls(strict=LOOK)
