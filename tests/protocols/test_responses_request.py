"""The contract's responses route, inwards."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from maple_plugins.parser import ToolSpec
from maple_protocols.adapter import Policy
from maple_protocols.ask import Ask, CalledTool, Conversation, Message, SamplingWish
from maple_protocols.errors import InvalidField
from maple_protocols.openai.responses import ResponsesAdapter
from maple_protocols.openai.responses_in import StoreNotConfigured

POLICY = Policy(vocabulary=100, template_variables=frozenset({"tone"}))
FLAT = {"type": "function", "name": "look", "parameters": {"type": "object"}}
NESTED = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def ask(policy: Policy = POLICY, /, **fields: Any) -> Ask:
    return ResponsesAdapter().structure({"input": "hi", **fields}, policy)


def conversation(**fields: Any) -> Conversation:
    prompt = ask(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def refusal(policy: Policy = POLICY, /, **fields: Any) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        ask(policy, **fields)
    assert caught.value.code == "invalid_parameter"
    return caught.value


def neutral(*items: object) -> tuple[Message, ...]:
    return conversation(input=list(items)).messages


def call(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", "name": name, "arguments": "{}", **more}


def thought(words: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": words}]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": content}


def said(words: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


class TestInput:
    @pytest.mark.parametrize(
        "given",
        [
            "hi",
            {"role": "user", "content": "hi"},
            [{"role": "user", "content": "hi"}],
            [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            [
                {
                    "type": None,
                    "role": "user",
                    "content": [{"type": "text", "text": "h"}, {"type": "output_text", "text": "i"}],
                }
            ],
        ],
    )
    def test_is_text_a_message_or_a_list_of_items(self, given: object) -> None:
        """String, one message, or a list of items; parts are input_text, output_text or text."""
        assert conversation(input=given).messages == (Message(role="user", content="hi"),)

    @pytest.mark.parametrize("given", ["", " \n", [], None, 5, True])
    def test_blank_is_refused(self, given: object) -> None:
        """Blank input: 400, param input, with a code."""
        assert refusal(input=given).param == "input"

    def test_is_required(self) -> None:
        """A body without input says so."""
        with pytest.raises(InvalidField, match="input is required"):
            ResponsesAdapter().structure({}, POLICY)

    @pytest.mark.parametrize(
        ("item", "path"),
        [
            ("hi", ""),
            ({}, ".role"),
            ({"role": "robot", "content": "x"}, ".role"),
            ({"role": "user"}, ".content"),
            ({"role": "user", "content": 5}, ".content"),
            ({"role": "user", "content": "\ud83d"}, ".content"),
            ({"role": "user", "content": [{"type": "input_image"}]}, ".content[0]"),
            ({"role": "user", "content": [{"type": "input_text"}]}, ".content[0].text"),
            ({"role": "tool", "content": "x"}, ".tool_call_id"),
            ({"type": ["message"]}, ".type"),
            ({"type": "function_call"}, ".name"),
            (call(5), ".name"),  # type: ignore[arg-type]
            (call(arguments="{not"), ".arguments"),
            (call(arguments={"\ud83d": 1}), ".arguments"),
            ({"type": "function_call_output", "output": "x"}, ".call_id"),
            ({"type": "function_call_output", "call_id": "c"}, ".output"),
            ({"type": "function_call_output", "call_id": "c", "output": 5}, ".output"),
            ({"type": "reasoning", "content": 5}, ".content"),
            ({"type": "reasoning", "content": [{"type": "text", "text": "x"}]}, ".content[0]"),
            ({"type": "reasoning", "summary": [{"type": "summary_text", "text": 5}]}, ".summary[0].text"),
        ],
    )
    def test_malformed_items_are_blamed_by_path(self, item: object, path: str) -> None:
        """Roles and validation as on chat, each item by its index."""
        assert refusal(input=[{"role": "user", "content": "a"}, item]).param == f"input[1]{path}"

    def test_a_lone_message_is_blamed_without_index(self) -> None:
        """One message outside a list has no index to name."""
        assert refusal(input={"role": "robot"}).param == "input.role"

    def test_roles_are_those_of_chat(self) -> None:
        """System, developer, user, assistant and tool, with the chat's own fields."""
        found = neutral(
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "u"},
            {
                "role": "assistant",
                "content": "<think>r</think>a",
                "tool_calls": [{"function": {"name": "f"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "t"},
            {"role": "system", "content": "s"},
        )
        assert found == (
            Message(role="system", content="d"),
            Message(role="user", content="u"),
            Message(
                role="assistant",
                content="a",
                reasoning="r",
                tool_calls=(CalledTool(name="f", arguments="{}"),),
            ),
            Message(role="tool", content="t"),
            Message(role="system", content="s"),
        )


class TestTurns:
    def test_one_assistant_turn_is_one_message(self) -> None:
        """Reasoning, message and calls in a row are what chat calls one message."""
        found = neutral(thought("r"), said("m"), call("a"), call("b", arguments={"x": 1}))
        calls = (CalledTool(name="a", arguments="{}"), CalledTool(name="b", arguments={"x": 1}))
        assert found == (Message(role="assistant", content="m", reasoning="r", tool_calls=calls),)

    def test_a_tool_round_trip(self) -> None:
        """The next turn begins after the outputs."""
        output = {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "42"}],
        }
        found = neutral(thought("r"), call(), output, thought("s"), said("m"))
        assert found == (
            Message(
                role="assistant",
                content="",
                reasoning="r",
                tool_calls=(CalledTool(name="f", arguments="{}"),),
            ),
            Message(role="tool", content="42"),
            Message(role="assistant", content="m", reasoning="s"),
        )

    def test_a_message_after_calls_belongs_to_them(self) -> None:
        """The model may speak after a call; chat has one content for both."""
        (message,) = neutral(call(), said("m"))
        assert (message.content, len(message.tool_calls)) == ("m", 1)

    @pytest.mark.parametrize(
        ("items", "contents"),
        [
            ([said("a"), said("b")], ["a", "b"]),
            ([said("a"), thought("r"), said("b")], ["a", "b"]),
            ([call(), thought("r"), said("b")], ["", "b"]),
        ],
    )
    def test_a_second_message_or_later_reasoning_is_a_new_turn(
        self, items: list[Any], contents: list[str]
    ) -> None:
        """There is one message a turn, and its reasoning comes first."""
        assert [message.content for message in neutral(*items)] == contents

    def test_reasoning_comes_from_content_else_summary(self) -> None:
        """Several items are lines; the message's own reasoning stands before theirs."""
        summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
        assert neutral(thought("r"), summary, {"type": "reasoning"}, said("m"))[0].reasoning == "r\ns"
        own = {"role": "assistant", "content": "m", "reasoning_content": "own"}
        assert neutral(thought("r"), own)[0].reasoning == "own"

    def test_reasoning_alone_is_a_turn(self) -> None:
        """A turn that was cut while it thought comes back as what it was."""
        assert neutral(thought("r"), {"role": "user", "content": "go on"})[0] == Message(
            role="assistant", content="", reasoning="r"
        )


class TestInstructions:
    def test_are_the_leading_system_message(self) -> None:
        """Instructions → leading system; empty ones are none."""
        found = conversation(instructions="be brief").messages
        assert found == (Message(role="system", content="be brief"), Message(role="user", content="hi"))
        assert conversation(instructions="").messages == found[1:]
        assert refusal(instructions=["x"]).param == "instructions"


class TestTools:
    @pytest.mark.parametrize("given", [FLAT, NESTED, {**FLAT, "strict": True, "function": None}])
    def test_are_flat_or_nested(self, given: object) -> None:
        """Flat Responses shape; the nested chat shape too."""
        found = conversation(tools=[given])
        assert found.tools == (NESTED,)
        assert found.tool_specs == (ToolSpec("look", {"type": "object"}),)

    @pytest.mark.parametrize(
        ("tool", "path"),
        [
            ({"type": "web_search"}, ".type"),
            ({"type": "mcp", "name": "x"}, ".type"),
            ({"name": "x"}, ".type"),
            ({"type": "function"}, ".name"),
            ({"type": "function", "name": ""}, ".name"),
            ({"type": "function", "name": "x", "parameters": []}, ".parameters"),
            ({"type": "function", "name": "x", "description": 5}, ".description"),
            ({"type": "custom", "function": {"name": "x"}}, ".type"),
            ({"type": "function", "function": {}}, ".function.name"),
            ("look", ""),
        ],
    )
    def test_others_are_blamed_by_path(self, tool: object, path: str) -> None:
        """Built-in tools 400 at tools[i].type, malformed ones where they are wrong."""
        assert refusal(tools=[FLAT, tool]).param == f"tools[1]{path}"

    @pytest.mark.parametrize(
        "choice", [{"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}]
    )
    def test_a_choice_by_name_filters(self, choice: object) -> None:
        """Both spellings of a named choice; it is echoed flat."""
        other = {"type": "function", "name": "other"}
        found = ask(tools=[FLAT, other], tool_choice=choice)
        assert isinstance(found.prompt, Conversation)
        assert found.prompt.tools == (NESTED,)
        assert found.echo["tool_choice"] == {"type": "function", "name": "look"}

    def test_choices_are_checked_as_on_chat(self) -> None:
        """None hides, required needs tools, unknown words and names are refused."""
        assert conversation(tools=[FLAT], tool_choice="none").tools == ()
        assert refusal(tool_choice="required").param == "tool_choice"
        assert refusal(tools=[FLAT], tool_choice={"type": "function", "name": "x"}).param == "tool_choice"
        assert refusal(tools=[FLAT], tool_choice={"type": "web_search"}).param == "tool_choice"


class TestThinking:
    @pytest.mark.parametrize(
        ("fields", "thinking"),
        [
            ({}, None),
            ({"reasoning": {}}, None),
            ({"reasoning": {"effort": "high", "summary": "auto"}}, None),
            ({"reasoning": {"effort": "none"}}, False),
            ({"chat_template_kwargs": {"enable_thinking": False}}, False),
            ({"reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": True}}, True),
        ],
    )
    def test_effort_none_turns_it_off(self, fields: dict[str, Any], thinking: bool | None) -> None:
        """{"effort": "none"} turns thinking off; the template's own switch is the more exact word."""
        assert conversation(**fields).thinking is thinking

    def test_bad_wishes_are_refused(self) -> None:
        """Reasoning is an object, its effort a word."""
        assert refusal(reasoning="none").param == "reasoning"
        assert refusal(reasoning={"effort": 5}).param == "reasoning.effort"
        assert refusal(chat_template_kwargs={"x": 1}).param == "chat_template_kwargs.x"
        assert conversation(chat_template_kwargs={"tone": "dry"}).template_variables == {"tone": "dry"}


def test_fields_reach_the_ask() -> None:
    """Max_output_tokens, sampling fields, stop, stream, session, include_reasoning."""
    found = ask(
        model="m",
        max_output_tokens=5,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        repetition_penalty=1.5,
        presence_penalty=1,
        frequency_penalty=1,
        seed=7,
        stop=["x"],
        stream=True,
        session_id="s",
        include_reasoning=False,
        user="u",
    )
    assert attrs_without(found, "prompt", "echo", "items", "call_forms", "references", "must_keep") == {
        "keep": False,
        "form": None,
        "forced_calls": None,
        "thinking_budget": None,
        "effort": None,
        "progress": False,
        "timings": False,
        "follows": None,
        "model": "m",
        "sampling": SamplingWish(temperature=0.0, top_p=0.5, top_k=0, repetition_penalty=1.5, seed=7),
        "max_tokens": 5,
        "stop": ("x",),
        "stream": True,
        "include_usage": False,
        "include_reasoning": False,
        "session_id": "s",
        "extended": False,
        "scores": None,
        "repeats_prompt": False,
        "choices": 1,
        "further": (),
        "ignored": ("presence_penalty", "frequency_penalty", "user"),
    }
    assert ask(Policy(session_header="h", include_reasoning=False)).session_id == "h"
    assert ask(Policy(session_header="/")).session_id is None


def attrs_without(found: Ask, *names: str) -> dict[str, Any]:
    return {field.name: getattr(found, field.name) for field in attrs.fields(Ask) if field.name not in names}


def test_the_request_is_echoed() -> None:
    """The response repeats instructions, metadata, tools, choice, sampling, limits, text and reasoning."""
    assert ask().echo == {
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": None,
        "truncation": "disabled",
        "user": None,
    }
    found = ask(
        instructions="i",
        max_output_tokens=5,
        metadata={"a": 10**30},
        parallel_tool_calls=False,
        reasoning={"effort": "low"},
        temperature=1,
        text={"format": {"type": "text"}, "verbosity": "low"},
        tool_choice="none",
        tools=[NESTED],
        top_p=0.5,
        store=False,
    ).echo
    assert found["tools"] == [{**FLAT, "description": None, "strict": False}]
    expected = {"instructions": "i", "max_output_tokens": 5, "metadata": {"a": 10**30}, "tool_choice": "none"}
    expected |= {"parallel_tool_calls": False, "temperature": 1.0, "top_p": 0.5}
    expected |= {"reasoning": {"effort": "low", "summary": None}}
    assert {key: found[key] for key in expected} == expected


ECHOED = ("prompt_cache_key", "safety_identifier", "user")
INERT = (
    "include",
    "truncation",
    "stream_options",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)


@pytest.mark.parametrize("field", INERT)
@pytest.mark.parametrize("value", ["auto", ["x"], {"a": 1}, 5, None])
def test_inert_fields_are_accepted(field: str, value: object) -> None:
    """Without effect: include, truncation, stream_options and the like; three of them are echoed."""
    found = ask(**{field: value})
    assert attrs.evolve(found, echo={**found.echo, **({field: None} if field in ECHOED else {})}) == ask()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"background": 0}, "background"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.type"),
        ({"text": {"format": "text"}}, "text.format"),
        ({"text": 5}, "text"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": "\ud83d"}}, "metadata"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 1}, "n"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"seed": 2**63}, "seed"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"store": "yes"}, "store"),
    ],
)
def test_anything_else_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Wrong or unknown: 400 naming it, code invalid_parameter."""
    assert refusal(**fields).param == param


def test_background_false_is_fine() -> None:
    """Background: false is what happens anyway."""
    assert ask(background=False) == ask()


def test_unknown_fields_pass_where_strictness_is_off() -> None:
    """MAPLE_STRICT_FIELDS false ignores everywhere; auto and true refuse here."""
    assert ask(Policy(strict_fields="false"), frobnicate=1) == ask()
    for strict in ("auto", "true"):
        assert refusal(Policy(strict_fields=strict), frobnicate=1).param == "frobnicate"  # type: ignore[arg-type]


def test_storing_needs_a_store() -> None:
    """Store true without a store is 501 not_configured; with one, both fields are handed on."""
    with pytest.raises(StoreNotConfigured) as caught:
        ask(store=True)
    assert caught.value.status == 501
    wire: Any = caught.value.body.as_wire()["error"]
    assert (wire["type"], wire["code"], wire["param"]) == ("server_error", "not_configured", "store")
    stored = ask(Policy(response_store=True), store=True, previous_response_id="resp_x").echo
    assert (stored["store"], stored["previous_response_id"]) == (True, "resp_x")
