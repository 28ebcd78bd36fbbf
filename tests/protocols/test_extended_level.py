"""What the extended level takes, and where it still says what is wrong."""

from __future__ import annotations

from typing import Annotated, Any

import attrs
import pytest
from maple_protocols.adapter import Policy
from maple_protocols.anthropic.adapter import MessagesAdapter
from maple_protocols.ask import Ask, Conversation, Message
from maple_protocols.errors import InvalidField
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.completions import CompletionsAdapter
from maple_protocols.openai.responses import ResponsesAdapter
from maple_protocols.openai.responses_tools import custom_input, shell_action
from maple_protocols.rules import Schema, Shape
from maple_protocols.strict import read

EXTENDED = Policy(vocabulary=100, level="extended")


def chat(*messages: object, **fields: Any) -> Ask:
    return ChatAdapter().structure({"messages": list(messages), **fields}, EXTENDED)


def responses(given: object = "hi", **fields: Any) -> Ask:
    return ResponsesAdapter().structure({"input": given, **fields}, EXTENDED)


def messages(ask: Ask) -> tuple[Message, ...]:
    assert isinstance(ask.prompt, Conversation)
    return ask.prompt.messages


def wrong(structure: Any, *given: object, **fields: Any) -> str | None:
    with pytest.raises(InvalidField) as caught:
        structure(*given, **fields)
    return caught.value.param


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object"}}


class TestHistories:
    def test_reasoning_in_parts_is_joined(self) -> None:
        """As some clients keep it."""
        thought = [{"type": "text", "text": "Hm"}, {"type": "text", "text": "m."}]
        ask = chat({"role": "assistant", "content": "a", "reasoning_content": thought}, USER)
        assert messages(ask)[0].reasoning == "Hmm."

    def test_a_message_that_is_no_object_is_named(self) -> None:
        assert wrong(chat, "hello") == "messages[0]"

    def test_a_legacy_call_is_a_tool_call(self) -> None:
        """``function_call`` of an assistant, and the ``function`` role that answers it."""
        called = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
        found = messages(chat(USER, called, {"role": "function", "name": "f", "content": "1"}))
        assert [call.name for call in found[1].tool_calls] == ["f"]
        assert (found[2].role, found[2].content) == ("tool", "1")

    def test_a_text_part_without_text_costs_no_refusal(self) -> None:
        """What can be read beside it is."""
        ask = chat({"role": "user", "content": [{"type": "text"}, {"type": "text", "text": "hi"}]})
        assert messages(ask)[0].content.endswith("hi")

    def test_input_of_nothing_that_can_be_read_is_named(self) -> None:
        """Hosted items are dropped, and something has to be left."""
        assert wrong(responses, [{"type": "web_search_call", "id": "ws_1", "status": "completed"}]) == "input"


class TestTools:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"name": "", "tools": []}, "tools[0].name"),
            ({"name": "n", "tools": {}}, "tools[0].tools"),
            ({"name": "n", "tools": [function("f"), function("")]}, "tools[0].tools[1].name"),
        ],
    )
    def test_a_broken_namespace_is_named(self, fields: dict[str, Any], param: str) -> None:
        assert wrong(responses, tools=[{"type": "namespace", **fields}]) == param

    def test_names_that_are_taken_are_not_given_twice(self) -> None:
        """A tool of the name that a namespace's would get keeps it."""
        inner = {"type": "namespace", "name": "a", "tools": [function("f")]}
        prompt = responses(tools=[function("f"), function("a__f"), inner]).prompt
        assert isinstance(prompt, Conversation)
        assert [tool.name for tool in prompt.tool_specs] == ["f", "a__f", "a__f_"]

    def test_allowed_tools_are_some_of_those_offered(self) -> None:
        tool = {"type": "function", "function": {"name": "f"}}
        allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        assert wrong(chat, USER, tools=[tool], tool_choice=choice) == "tool_choice"

    def test_text_that_is_no_json_reaches_the_tool(self) -> None:
        """A custom tool gets all of it, a shell runs it."""
        assert custom_input("ls -l") == "ls -l"
        assert shell_action("ls -l")["command"] == ["bash", "-lc", "ls -l"]


@attrs.frozen
class Faulty(Shape):
    """A shape with a fault of its own."""

    def structure(self, value: object) -> object:
        raise ZeroDivisionError

    def schema(self) -> Schema:
        return {}


@attrs.frozen
class Body:
    field: Annotated[str, Faulty()] = ""


def test_a_shapes_own_fault_is_not_taken_for_the_clients() -> None:
    """It is raised as it is, for the log of the plugin's author."""
    with pytest.raises(ZeroDivisionError):
        read(Body, {"field": "x"})


USER = {"role": "user", "content": "hi"}


class TestSampling:
    """Fields that the reference ignores, and those that it does not know."""

    def test_penalties_and_bias_have_effect(self) -> None:
        ask = chat(USER, presence_penalty=0.5, frequency_penalty=-2, logit_bias={"7": 3, "99": -100})
        assert (ask.sampling.presence, ask.sampling.frequency) == (0.5, -2)
        assert ask.sampling.bias == ((7, 3.0), (99, -100.0))
        assert ask.ignored == ()

    def test_at_the_reference_level_they_have_none(self) -> None:
        """Whatever they hold, and the client is told."""
        fields = {"presence_penalty": 9, "logit_bias": {"x": "y"}}
        ask = ChatAdapter().structure({"messages": [USER], **fields}, Policy(vocabulary=100))
        assert (ask.sampling.presence, ask.sampling.bias) == (0, ())
        assert ask.ignored == ("presence_penalty", "logit_bias")

    @pytest.mark.parametrize(
        ("field", "value", "param"),
        [
            ("presence_penalty", 2.1, "presence_penalty"),
            ("frequency_penalty", -3, "frequency_penalty"),
            ("logit_bias", {"7": 101}, "logit_bias.7"),
            ("logit_bias", {"7": True}, "logit_bias.7"),
            ("logit_bias", {"100": 1}, "logit_bias.100"),
            ("logit_bias", {"-1": 1}, "logit_bias.-1"),
            ("logit_bias", {str(token): 1 for token in range(1025)}, "logit_bias"),
            ("logit_bias", [1], "logit_bias"),
            ("min_p", 1.5, "min_p"),
            ("min_tokens", -1, "min_tokens"),
            ("min_tokens", 9, "min_tokens"),
            ("stop_token_ids", 3, "stop_token_ids"),
            ("stop_token_ids", [1, -1], "stop_token_ids[1]"),
            ("stop_token_ids", list(range(65)), "stop_token_ids"),
            ("ignore_eos", 1, "ignore_eos"),
        ],
    )
    def test_what_is_wrong_is_named(self, field: str, value: object, param: str) -> None:
        assert wrong(chat, USER, max_tokens=8, **{field: value}) == param

    def test_the_fields_that_no_level_refuses(self) -> None:
        """On each route."""
        fields = {"min_p": 0.1, "min_tokens": 3, "stop_token_ids": [4, 5], "ignore_eos": True}
        policy = Policy(vocabulary=100)
        for adapter, body in (
            (ChatAdapter(), {"messages": [USER]}),
            (CompletionsAdapter(), {"prompt": "x"}),
            (ResponsesAdapter(), {"input": "x"}),
        ):
            wish = adapter.structure({**body, **fields}, policy).sampling
            assert (wish.min_p, wish.min_tokens, wish.stop_ids, wish.ignore_eos) == (0.1, 3, (4, 5), True)


class TestThinkingBudget:
    """Most tokens of reasoning, from each spelling."""

    @pytest.mark.parametrize(
        ("fields", "thinking", "budget"),
        [
            ({"thinking_token_budget": 7}, True, 7),
            ({"thinking_budget_tokens": 7}, True, 7),
            ({"thinking_token_budget": 0}, False, None),
            ({"reasoning": {"max_tokens": 9}}, None, 9),
            ({"thinking_token_budget": 7, "enable_thinking": False}, False, 7),
            ({"thinking_token_budget": 7, "reasoning_effort": "none"}, True, 7),
            ({}, None, None),
        ],
    )
    def test_on_chat(self, fields: dict[str, object], thinking: bool | None, budget: int | None) -> None:
        ask = chat(USER, **fields)
        assert isinstance(ask.prompt, Conversation)
        assert (ask.prompt.thinking, ask.thinking_budget) == (thinking, budget)

    @pytest.mark.parametrize(
        ("fields", "thinking", "budget"),
        [
            ({"reasoning": {"max_tokens": 9}}, True, 9),
            ({"thinking_budget_tokens": 0, "reasoning": {"max_tokens": 9}}, False, None),
            ({"reasoning": {"effort": "low"}}, None, None),
        ],
    )
    def test_on_responses(self, fields: dict[str, object], thinking: bool | None, budget: int | None) -> None:
        ask = responses("hi", **fields)
        assert isinstance(ask.prompt, Conversation)
        assert (ask.prompt.thinking, ask.thinking_budget) == (thinking, budget)

    def test_an_effort_is_a_word(self) -> None:
        """The first that is one; below zero a budget is refused."""
        assert chat(USER, reasoning={"effort": "low"}, reasoning_effort="high").effort == "low"
        assert chat(USER, reasoning_effort="high").effort == "high"
        assert responses("hi", reasoning_effort="low").effort == "low"
        assert wrong(chat, USER, thinking_token_budget=-1) == "thinking_token_budget"


def test_strictness_that_nothing_enforces_is_told() -> None:
    """A call that the model makes by itself is not held to its schema; one that is forced is."""
    tool = {**function("look"), "strict": True}
    nested = {"type": "function", "function": {key: tool[key] for key in ("name", "parameters", "strict")}}
    assert chat(USER, tools=[nested]).ignored == ("tools[].strict",)
    assert responses(tools=[tool]).ignored == ("tools[].strict",)
    anthropic = {"name": "look", "input_schema": {"type": "object"}, "strict": True}
    body = {"model": "m", "max_tokens": 9, "messages": [USER], "tools": [anthropic]}
    assert MessagesAdapter().structure(body, EXTENDED).ignored == ("tools[].strict",)
    for ask in (
        chat(USER, tools=[nested], tool_choice="required"),
        responses(tools=[tool], tool_choice="required"),
        MessagesAdapter().structure({**body, "tool_choice": {"type": "any"}}, EXTENDED),
    ):
        assert ask.forced_calls is not None
        assert ask.forced_calls.strict == {"look"}
        assert ask.ignored == ()
