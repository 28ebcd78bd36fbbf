"""Lone surrogates: no field of a request lets one in, whether anything reads the field or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from maple_protocols.adapter import GenerationAdapter, Policy
from maple_protocols.errors import InvalidField
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.completions import CompletionsAdapter
from maple_protocols.openai.responses import ResponsesAdapter
from maple_protocols.strict import table

LONE = "a\ud800"
CHAT, COMPLETIONS, RESPONSES = ChatAdapter(), CompletionsAdapter(), ResponsesAdapter()
BODIES: Mapping[GenerationAdapter, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
}
FREE = ("model", "stop", "user")
"""Fields of all three routes in which any other string is fine."""
UNREAD = ("metadata", "service_tier", "prompt_cache_key", "safety_identifier")
UNREAD_ON_CHAT = (*UNREAD, "store", "parallel_tool_calls", "reasoning_effort", "verbosity", "logit_bias")
UNREAD_ON_RESPONSES = (*UNREAD[1:], "include", "truncation", "prompt_cache_retention", "stream_options")


def chat(message: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [message]}


def call(**function: object) -> dict[str, Any]:
    called = {"type": "function", "function": {"name": "f", **function}}
    return chat({"role": "assistant", "content": "", "tool_calls": [called]})


def tool(**function: object) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


def item(kind: str, **fields: object) -> dict[str, Any]:
    return {"input": [{"type": kind, **fields}]}


def adapter_name(value: object) -> str | None:
    """What an adapter is called in a test's id; anything else as pytest has it."""
    return getattr(value, "name", None)


def refusal(adapter: GenerationAdapter, fields: dict[str, Any]) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        adapter.structure({**BODIES[adapter], **fields}, Policy(vocabulary=100, response_store=True))
    return caught.value


@pytest.mark.parametrize(
    ("adapter", "fields", "param"),
    [
        *((adapter, {name: LONE}, name) for adapter in BODIES for name in FREE),
        *((CHAT, {name: LONE}, name) for name in UNREAD_ON_CHAT),
        *((RESPONSES, {name: LONE}, name) for name in UNREAD_ON_RESPONSES),
        (COMPLETIONS, {"logit_bias": {LONE: 1}}, "logit_bias"),
        (COMPLETIONS, {"prompt": LONE}, "prompt"),
        (COMPLETIONS, {"prompt": [LONE]}, "prompt"),
        (CHAT, {"user": {"name": [LONE]}}, "user"),
        (CHAT, {"metadata": {LONE: "a"}}, "metadata"),
        (CHAT, {"metadata": {"a": LONE}}, "metadata"),
        (CHAT, {"modalities": ["text", LONE]}, "modalities"),
        (CHAT, {"stop": ["a", LONE]}, "stop"),
        (CHAT, chat({"role": "system", "content": LONE}), "messages[0].content"),
        (
            CHAT,
            chat({"role": "user", "content": [{"type": "text", "text": LONE}]}),
            "messages[0].content[0].text",
        ),
        (CHAT, chat({"role": "assistant", "reasoning": LONE}), "messages[0].reasoning"),
        (CHAT, chat({"role": "assistant", "reasoning_content": LONE}), "messages[0].reasoning_content"),
        (CHAT, chat({"role": "tool", "content": "", "tool_call_id": LONE}), "messages[0].tool_call_id"),
        (CHAT, call(name=LONE), "messages[0].tool_calls[0].function.name"),
        (CHAT, call(arguments={"a": LONE}), "messages[0].tool_calls[0].function.arguments"),
        (CHAT, call(arguments=f'{{"a": "{LONE}"}}'), "messages[0].tool_calls[0].function.arguments"),
        (CHAT, tool(name=LONE), "tools[0].function.name"),
        (CHAT, tool(description=LONE), "tools[0].function.description"),
        (CHAT, tool(parameters={"a": LONE}), "tools[0].function.parameters"),
        (CHAT, {"tool_choice": {"type": "function", "function": {"name": LONE}}}, "tool_choice"),
        (CHAT, {"chat_template_kwargs": {"tone": LONE}}, "chat_template_kwargs"),
        (RESPONSES, {"input": LONE}, "input"),
        (RESPONSES, {"instructions": LONE}, "instructions"),
        (RESPONSES, {"metadata": {"a": LONE}}, "metadata"),
        (RESPONSES, {"reasoning": {"effort": LONE}}, "reasoning.effort"),
        (RESPONSES, {"previous_response_id": LONE}, "previous_response_id"),
        (RESPONSES, {"tools": [{"type": "function", "name": LONE}]}, "tools[0].name"),
        (RESPONSES, {"tool_choice": {"type": "function", "name": LONE}}, "tool_choice"),
        (RESPONSES, item("message", role="user", content=LONE), "input[0].content"),
        (RESPONSES, item("function_call", name=LONE), "input[0].name"),
        (RESPONSES, item("function_call", name="f", call_id=LONE), "input[0].call_id"),
        (RESPONSES, item("function_call", name="f", arguments={LONE: 1}), "input[0].arguments"),
        (RESPONSES, item("function_call_output", call_id=LONE, output=""), "input[0].call_id"),
        (RESPONSES, item("function_call_output", call_id="c", output=LONE), "input[0].output"),
        (RESPONSES, item("reasoning", content=LONE), "input[0].content"),
        (RESPONSES, item("reasoning", summary=LONE), "input[0].summary"),
    ],
    ids=adapter_name,
)
def test_are_refused_in_every_free_string(
    adapter: GenerationAdapter, fields: dict[str, Any], param: str
) -> None:
    """With one message, and the field by its path; inside an object of the client's own, the object's."""
    error = refusal(adapter, fields)
    assert (error.param, error.message) == (param, f"{param} must not hold a lone surrogate")


def every_field() -> list[tuple[GenerationAdapter, str]]:
    return [(adapter, field.name) for adapter in BODIES for field in table(adapter.request)]


@pytest.mark.parametrize(("adapter", "name"), every_field(), ids=adapter_name)
def test_pass_through_no_field_at_all(adapter: GenerationAdapter, name: str) -> None:
    """What the routes' tables list, whatever its type, today or later."""
    assert refusal(adapter, {name: LONE}).param == name
