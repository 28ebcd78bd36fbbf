"""Every line of the contract's chat table, inwards."""

from __future__ import annotations

from typing import Any

import pytest
from maple_plugins.parser import ToolSpec
from maple_protocols.adapter import Policy
from maple_protocols.ask import Ask, CalledTool, Conversation, Message, SamplingWish
from maple_protocols.errors import InvalidField
from maple_protocols.openai.chat import ChatAdapter

USER = {"role": "user", "content": "hi"}
SERVED = "; this is served with --api-level extended"
POLICY = Policy(vocabulary=100, template_variables=frozenset({"tone"}))


def tool(name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def ask(policy: Policy = POLICY, /, **fields: Any) -> Ask:
    return ChatAdapter().structure({"messages": [USER], **fields}, policy)


def conversation(**fields: Any) -> Conversation:
    prompt = ask(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def refusal(policy: Policy = POLICY, /, **fields: Any) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        ask(policy, **fields)
    assert caught.value.status == 400
    return caught.value


def blamed(*messages: object) -> str:
    error = refusal(messages=list(messages))
    assert error.code is None
    return error.param


def neutral(*messages: object) -> tuple[Message, ...]:
    return conversation(messages=list(messages)).messages


def test_a_bare_conversation_leaves_the_rest_open() -> None:
    """Defaults are the server's business: what is absent stays None."""
    assert ask() == Ask(
        prompt=Conversation(messages=(Message(role="user", content="hi"),)), include_reasoning=True
    )


class TestModel:
    def test_is_an_optional_string(self) -> None:
        """Model is echoed, whatever it says."""
        assert ask(model="gpt-4o").model == "gpt-4o"
        assert refusal(model=5).param == "model"

    def test_has_at_most_256_characters(self) -> None:
        """Model: 256 characters pass, 257 do not."""
        assert ask(model="m" * 256).model == "m" * 256
        assert refusal(model="m" * 257).param == "model"


class TestMessages:
    @pytest.mark.parametrize("messages", [None, [], "hi", {"role": "user"}, 5])
    def test_must_be_a_list_of_one_or_more(self, messages: object) -> None:
        """Messages: 1 or more."""
        assert refusal(messages=messages).param == "messages"

    def test_are_required(self) -> None:
        """A body without messages says so."""
        with pytest.raises(InvalidField, match="messages is required"):
            ChatAdapter().structure({}, POLICY)

    def test_roles_come_in_any_order(self) -> None:
        """System anywhere, developer rendered as system, tool and assistant wherever they stand."""
        found = neutral(
            {"role": "assistant", "content": "a"},
            {"role": "tool", "content": "t", "tool_call_id": "x"},
            USER,
            {"role": "developer", "content": "d"},
            {"role": "system", "content": "s"},
        )
        assert [message.role for message in found] == ["assistant", "tool", "user", "system", "system"]
        assert [message.content for message in found] == ["a", "t", "hi", "d", "s"]

    @pytest.mark.parametrize("role", ["robot", "function", "", None, 5, ["user"]])
    def test_other_roles_are_refused(self, role: object) -> None:
        """A role outside the five is blamed by its path."""
        assert blamed(USER, {"role": role, "content": "x"}) == "messages[1].role"

    def test_must_be_objects(self) -> None:
        """A message that is no object has no role to blame."""
        assert blamed("hi") == "messages[0]"
        assert blamed(USER, None) == "messages[1]"
        assert blamed({"content": "x"}) == "messages[0].role"

    def test_ignore_unknown_keys(self) -> None:
        """A name, a refusal or anything else on a message is passed over."""
        assert neutral({**USER, "name": "bob", "refusal": 3}) == neutral(USER)


class TestContent:
    @pytest.mark.parametrize("role", ["system", "developer", "user"])
    def test_null_is_empty(self, role: str) -> None:
        """Content null is the empty string."""
        assert neutral({"role": role, "content": None})[0].content == ""

    def test_must_be_there_except_on_the_assistant(self) -> None:
        """Only an assistant's content may be missing."""
        assert blamed({"role": "user"}) == "messages[0].content"
        assert blamed({"role": "tool", "tool_call_id": "x"}) == "messages[0].content"
        assert neutral({"role": "assistant"})[0].content == ""

    def test_parts_are_joined_with_nothing_between(self) -> None:
        """A list of text parts is their text; an empty list is the empty string."""
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "annotations": []}]
        assert neutral({"role": "user", "content": parts})[0].content == "ab"
        assert neutral({"role": "user", "content": []})[0].content == ""

    @pytest.mark.parametrize(
        "part",
        [
            {"text": "a"},
            {"type": "image_url"},
            {"type": "input_text", "text": "a"},
            "a",
            None,
            {"type": ["text"]},
        ],
    )
    def test_a_part_that_is_not_text_is_blamed(self, part: object) -> None:
        """A part whose type is missing or not text, or that is not an object."""
        good = {"type": "text", "text": "a"}
        assert blamed({"role": "user", "content": [good, part]}) == "messages[0].content[1]"

    @pytest.mark.parametrize("words", [None, 5, ["a"], "\ud83d"])
    def test_a_parts_text_must_be_text(self, words: object) -> None:
        """Its text not a string: the blame goes to ….text."""
        assert (
            blamed({"role": "user", "content": [{"type": "text", "text": words}]})
            == "messages[0].content[0].text"
        )
        assert blamed({"role": "user", "content": [{"type": "text"}]}) == "messages[0].content[0].text"

    @pytest.mark.parametrize("content", [5, True, {"type": "text", "text": "a"}, "\udc00"])
    def test_anything_else_is_refused(self, content: object) -> None:
        """A number, a bool, a lone part, a lone surrogate."""
        assert blamed(USER, {"role": "user", "content": content}) == "messages[1].content"


class TestAssistant:
    @pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
    def test_reasoning_goes_back(self, field: str) -> None:
        """Reasoning under either name goes back into the template; content stays as it is beside it."""
        message = {"role": "assistant", "content": "<think>x</think>y", field: "because"}
        assert neutral(message) == (
            Message(role="assistant", content="<think>x</think>y", reasoning="because"),
        )
        assert blamed({"role": "assistant", field: 5}) == f"messages[0].{field}"

    def test_reasoning_content_wins_over_reasoning(self) -> None:
        """Where both names are used, the first wins."""
        message = {"role": "assistant", "reasoning_content": "a", "reasoning": "b"}
        assert neutral(message)[0].reasoning == "a"

    @pytest.mark.parametrize(
        ("content", "reasoning", "answer"),
        [
            ("<think>\nhm\n</think>\n\nyes", "hm", "yes"),
            ("\n<think>hm</think>yes", "hm", "yes"),
            ("<think>a</think>b</think>c", "a", "b</think>c"),
            ("<think>\n\n</think>\n\nyes", None, "yes"),
            ("<think>open", None, "<think>open"),
            ("so <think>hm</think>", None, "so <think>hm</think>"),
            ("hm</think>yes", None, "hm</think>yes"),
        ],
    )
    def test_a_leading_think_block_is_split(self, content: str, reasoning: str | None, answer: str) -> None:
        """A block that opens the content is reasoning, in parts too; any other marker is text."""
        expected = (Message(role="assistant", content=answer, reasoning=reasoning),)
        assert neutral({"role": "assistant", "content": content}) == expected
        parts = [{"type": "text", "text": character} for character in content]
        assert neutral({"role": "assistant", "content": parts, "reasoning_content": ""}) == expected

    def test_only_the_assistant_has_a_think_block(self) -> None:
        """The same text from a user is text."""
        assert neutral({"role": "user", "content": "<think>a</think>b"})[0].content == "<think>a</think>b"

    @pytest.mark.parametrize("calls", [None, []])
    def test_no_calls_are_none(self, calls: object) -> None:
        """Null and [] mean none."""
        assert neutral({"role": "assistant", "content": "a", "tool_calls": calls})[0].tool_calls == ()

    @pytest.mark.parametrize(
        ("arguments", "kept"),
        [
            ('{"x": 1}', '{"x": 1}'),
            (' {"x":NaN} ', ' {"x":NaN} '),
            ({"x": 10**30}, {"x": 10**30}),
            ({}, {}),
            ("", "{}"),
            (None, "{}"),
        ],
    )
    def test_arguments_are_an_object_or_its_text(self, arguments: object, kept: object) -> None:
        """JSON text of an object, an object, "" or missing; text stays the text it is."""
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        assert neutral({"role": "assistant", "tool_calls": [call]})[0].tool_calls == (
            CalledTool(name="f", arguments=kept),  # type: ignore[arg-type]
        )

    def test_arguments_and_type_may_be_missing(self) -> None:
        """A call needs a function with a name, no more."""
        calls = neutral({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]})[0].tool_calls
        assert calls == (CalledTool(name="f", arguments="{}"),)

    @pytest.mark.parametrize(
        ("call", "path"),
        [
            ({"type": "custom", "function": {"name": "f"}}, ".type"),
            ({"type": "function"}, ".function"),
            ({"function": "f"}, ".function"),
            ({"function": {}}, ".function.name"),
            ({"function": {"name": 5}}, ".function.name"),
            ({"function": {"name": "\ud83d"}}, ".function.name"),
            ({"function": {"name": "f", "arguments": "{not"}}, ".function.arguments"),
            ({"function": {"name": "f", "arguments": "[]"}}, ".function.arguments"),
            ({"function": {"name": "f", "arguments": []}}, ".function.arguments"),
            ({"function": {"name": "f", "arguments": 5}}, ".function.arguments"),
            ({"function": {"name": "f", "arguments": '{"a": "\ud83d"}'}}, ".function.arguments"),
            ({"function": {"name": "f", "arguments": {"\ud83d": 1}}}, ".function.arguments"),
            ("f", ""),
        ],
    )
    def test_malformed_calls_are_blamed_by_path(self, call: object, path: str) -> None:
        """Type function or none, a string name, arguments as above; else 400 at the very place."""
        good = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
        message = {"role": "assistant", "tool_calls": [good, call]}
        assert blamed(USER, message) == f"messages[1].tool_calls[1]{path}"

    def test_calls_must_be_a_list(self) -> None:
        """An object is no list of calls."""
        assert blamed({"role": "assistant", "tool_calls": {}}) == "messages[0].tool_calls"


class TestToolMessage:
    def test_needs_a_call_id(self) -> None:
        """tool_call_id is required, a string; it need not match."""
        assert blamed({"role": "tool", "content": "x"}) == "messages[0].tool_call_id"
        assert blamed({"role": "tool", "content": "x", "tool_call_id": None}) == "messages[0].tool_call_id"
        assert blamed({"role": "tool", "content": "x", "tool_call_id": 5}) == "messages[0].tool_call_id"
        found = neutral({"role": "tool", "content": "x", "tool_call_id": "nowhere"})
        assert found == (Message(role="tool", content="x"),)


class TestTools:
    @pytest.mark.parametrize("tools", [None, []])
    def test_an_empty_list_means_none(self, tools: object) -> None:
        """Tools: [] means none."""
        assert conversation(tools=tools).tools == ()

    def test_keep_the_clients_order_of_keys_and_lose_unknown_ones(self) -> None:
        """The template spells a tool out as it stands; unknown and null keys are not part of it."""
        given = {
            "function": {"parameters": {"b": 1, "a": 2}, "strict": True, "name": "f", "description": None},
            "extra": 1,
            "type": "function",
        }
        (shown,) = conversation(tools=[given]).tools
        assert list(shown) == ["function", "type"]
        assert list(shown["function"].items()) == [("parameters", {"b": 1, "a": 2}), ("name", "f")]  # type: ignore[attr-defined]

    def test_reach_the_parsers(self) -> None:
        """Parsers see names and schemas."""
        specs = conversation(tools=[tool("a"), tool("b", parameters={"type": "object"})]).tool_specs
        assert specs == (ToolSpec("a"), ToolSpec("b", {"type": "object"}))

    @pytest.mark.parametrize(
        ("bad", "path"),
        [
            ({"type": "web_search"}, ".type"),
            ({"function": {"name": "f"}}, ".type"),
            ({"type": "function"}, ".function"),
            ({"type": "function", "function": []}, ".function"),
            (tool(""), ".function.name"),
            (tool(5), ".function.name"),  # type: ignore[arg-type]
            (tool("\ud83d"), ".function.name"),
            (tool(description=5), ".function.description"),
            (tool(description="\ud83d"), ".function.description"),
            (tool(parameters=[]), ".function.parameters"),
            (tool(parameters="{}"), ".function.parameters"),
            (tool(parameters={"properties": {"\ud83d": {}}}), ".function.parameters"),
            (tool(parameters={"enum": ["\ud83d"]}), ".function.parameters"),
            ("f", ""),
        ],
    )
    def test_malformed_tools_are_blamed_by_path(self, bad: object, path: str) -> None:
        """Type, name, description and parameters each at their own path."""
        assert refusal(tools=[tool(), bad]).param == f"tools[1]{path}"

    def test_must_be_a_list(self) -> None:
        """One tool outside a list is not a list."""
        assert refusal(tools=tool()).param == "tools"


NAMED: dict[str, Any] = {"type": "function", "function": {"name": "b"}}


class TestToolChoice:
    @pytest.mark.parametrize("choice", ["auto", "required", None])
    def test_shows_all_tools(self, choice: object) -> None:
        """Auto and required show every tool; the choice is not otherwise enforced."""
        assert len(conversation(tools=[tool("a"), tool("b")], tool_choice=choice).tools) == 2

    def test_none_hides_the_tools(self) -> None:
        """None hides the tools from the model and the parsers."""
        hidden = conversation(tools=[tool()], tool_choice="none")
        assert (hidden.tools, hidden.tool_specs) == ((), ())

    def test_a_named_function_filters_the_list(self) -> None:
        """Named: the list handed to the model holds that one."""
        found = conversation(tools=[tool("a"), tool("b")], tool_choice=NAMED)
        assert (found.tools, found.tool_specs) == ((tool("b"),), (ToolSpec("b"),))

    @pytest.mark.parametrize(
        "choice",
        [
            "maybe",
            5,
            [],
            {},
            {"type": "function"},
            {"type": "function", "name": "a"},
            {"type": "function", "function": "a"},
            {"type": "function", "function": {"name": 5}},
            {"type": "custom", "function": {"name": "a"}},
            {"type": "allowed_tools"},
            NAMED,
            {"type": "function", "function": {"name": "\ud83d"}},
        ],
    )
    def test_an_unknown_word_name_or_type_is_refused(self, choice: object) -> None:
        """Unknown word, name or type: 400 param tool_choice."""
        assert refusal(tools=[tool("a")], tool_choice=choice).param == "tool_choice"

    def test_without_tools_only_none_and_auto_are_fine(self) -> None:
        """Required and named need tools to choose from."""
        assert ask(tool_choice="none") == ask(tool_choice="auto", tools=[]) == ask()
        assert refusal(tool_choice="required").param == "tool_choice"
        assert refusal(tool_choice=NAMED, tools=[]).param == "tool_choice"


class TestSampling:
    def test_reaches_the_ask(self) -> None:
        """Each sampling field lands in its place, integers as numbers."""
        found = ask(temperature=0, top_p=1, top_k=5, repetition_penalty=2, seed=-5).sampling
        assert found == SamplingWish(temperature=0.0, top_p=1.0, top_k=5, repetition_penalty=2.0, seed=-5)

    @pytest.mark.parametrize("top_k", [-1, 0])
    def test_top_k_has_two_words_for_off(self, top_k: int) -> None:
        """Top_k: −1 and 0 mean off."""
        assert ask(top_k=top_k).sampling.top_k == 0

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("temperature", -0.1),
            ("temperature", 2.1),
            ("temperature", "0.5"),
            ("temperature", True),
            ("temperature", 2**70),
            ("top_p", 0),
            ("top_p", 1.5),
            ("top_k", -2),
            ("top_k", 1.0),
            ("repetition_penalty", 0),
            ("repetition_penalty", -1),
            ("seed", 2**63),
            ("seed", 1.0),
            ("seed", "1"),
            ("presence_penalty", "1"),
            ("frequency_penalty", True),
        ],
    )
    def test_out_of_range_is_refused(self, field: str, value: object) -> None:
        """Temperature 0..2, top_p (0,1], top_k ≥ −1, repetition_penalty > 0, seed int64."""
        assert refusal(**{field: value}).param == field

    def test_edges_pass(self) -> None:
        """The closed ends belong to their ranges."""
        assert ask(temperature=2, top_p=1e-9, seed=2**63 - 1).sampling.temperature == 2.0

    def test_penalties_are_ignored(self) -> None:
        """Presence and frequency penalty: numbers of any size, without effect."""
        assert ask(presence_penalty=30, frequency_penalty=-1.5) == ask()


class TestMaxTokens:
    def test_max_completion_tokens_wins(self) -> None:
        """The first wins."""
        assert ask(max_tokens=50, max_completion_tokens=2).max_tokens == 2
        assert ask(max_tokens=50).max_tokens == 50
        assert ask(max_completion_tokens=10**9).max_tokens == 10**9

    @pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, "4", True, 2**63])
    @pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
    def test_a_bad_one_is_refused_even_if_the_other_is_fine(self, field: str, value: object) -> None:
        """Integer ≥ 1, both of them."""
        fields: dict[str, Any] = {"max_tokens": 5, "max_completion_tokens": 5, field: value}
        assert refusal(**fields).param == field


class TestStop:
    @pytest.mark.parametrize(
        ("stop", "found"),
        [
            ("a", ("a",)),
            (["a", "b"], ("a", "b")),
            ([], ()),
            (["x" * 1000] * 16, ("x" * 1000,) * 16),
            ("\n", ("\n",)),
        ],
    )
    def test_is_a_string_or_a_list(self, stop: object, found: tuple[str, ...]) -> None:
        """A string or a list of 0–16 non-empty strings of at most 1,000 characters."""
        assert ask(stop=stop).stop == found

    @pytest.mark.parametrize(
        "stop",
        [
            "",
            [""],
            ["a", 1],
            5,
            {},
            ["a"] * 17,
            "x" * 1001,
            ["x" * 1001],
            [None],
            [["a"]],
            "\ud83d",
            ["\ud83d"],
        ],
    )
    def test_every_refusal_blames_the_field(self, stop: object) -> None:
        """Every refusal has param stop, never an index."""
        assert refusal(stop=stop).param == "stop"


class TestStream:
    def test_usage_is_sent_if_asked_for(self) -> None:
        """Include_usage counts with a stream only."""
        options = {"include_usage": True, "include_obfuscation": True}
        assert ask(stream=True, stream_options=options).include_usage
        assert not ask(stream=False, stream_options=options).include_usage
        assert not ask(stream=True, stream_options={}).include_usage
        assert not ask(stream=True).include_usage
        assert ask(stream=True).stream

    @pytest.mark.parametrize("stream", ["yes", 1, []])
    def test_is_a_bool(self, stream: object) -> None:
        """Stream is a bool."""
        assert refusal(stream=stream).param == "stream"

    def test_options_are_an_object_of_bools(self) -> None:
        """Stream_options must be an object; its include_usage a bool."""
        assert refusal(stream=True, stream_options=[]).param == "stream_options"
        assert refusal(stream_options="x").param == "stream_options"
        assert (
            refusal(stream=True, stream_options={"include_usage": 1}).param == "stream_options.include_usage"
        )


class TestTemplateKwargs:
    @pytest.mark.parametrize("thinking", [True, False])
    def test_enable_thinking_is_a_bool(self, thinking: bool) -> None:
        """Enable_thinking goes to the prompt; null leaves it open."""
        assert conversation(chat_template_kwargs={"enable_thinking": thinking}).thinking is thinking
        assert conversation(chat_template_kwargs={"enable_thinking": None}).thinking is None
        for bad in ("false", 0, 1):
            error = refusal(chat_template_kwargs={"enable_thinking": bad})
            assert error.param == "chat_template_kwargs.enable_thinking"

    def test_other_keys_must_be_the_templates_own(self) -> None:
        """A key the template reads is handed on; any other is blamed by name and never an argument."""
        assert conversation(
            chat_template_kwargs={"tone": ["dry"], "enable_thinking": True}
        ).template_variables == {"tone": ["dry"]}
        assert conversation(chat_template_kwargs={"other": None}) == conversation()
        for key in ("chat_template", "tokenize", "messages", "tools", "add_generation_prompt"):
            assert refusal(chat_template_kwargs={key: 1}).param == f"chat_template_kwargs.{key}"

    def test_is_an_object_without_lone_surrogates(self) -> None:
        """A list is not an object; a surrogate in it is blamed on the field."""
        assert refusal(chat_template_kwargs=[]).param == "chat_template_kwargs"
        assert refusal(chat_template_kwargs={"tone": "\ud83d"}).param == "chat_template_kwargs"

    def test_a_long_key_is_cut(self) -> None:
        """Client text echoed in a param is cut at 64 characters."""
        body = refusal(chat_template_kwargs={"k" * 500: 1}).body
        assert body.param == ("chat_template_kwargs." + "k" * 500)[:64]


class TestIncludeReasoning:
    def test_the_request_decides_before_the_deployment(self) -> None:
        """Include_reasoning: the request's word, else the policy's."""
        hidden = Policy(include_reasoning=False)
        assert ask(hidden).include_reasoning is False
        assert ask(hidden, include_reasoning=True).include_reasoning is True
        assert ask(include_reasoning=False).include_reasoning is False
        assert refusal(include_reasoning="no").param == "include_reasoning"


INERT = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "reasoning_effort",
    "verbosity",
    "prompt_cache_key",
    "safety_identifier",
    "logit_bias",
    "modalities",
)


@pytest.mark.parametrize("field", INERT)
@pytest.mark.parametrize("value", ["x", 5, {"a": 1}, [True], False])
def test_inert_fields_are_known_and_without_effect(field: str, value: object) -> None:
    """Known, accepted, without effect, also where unknown fields are refused."""
    assert ask(Policy(strict_fields="true"), **{field: value}) == ask()


class TestSession:
    @pytest.mark.parametrize("name", ["a", "_", "-x", "A.b-c_9", "a" * 128])
    def test_ties_the_request_to_a_session(self, name: str) -> None:
        """By field or by header; the field wins."""
        assert ask(session_id=name).session_id == name
        assert ask(Policy(session_header=name)).session_id == name
        assert ask(Policy(session_header="other"), session_id=name).session_id == name

    @pytest.mark.parametrize("name", ["", ".", "..", ".a", "a/b", "a b", "é", "a\n", "a" * 129])
    def test_an_unsafe_name_is_refused(self, name: str) -> None:
        """Outside the pattern: 400 param session_id; a header, which many use as a mere label, is passed over."""
        assert refusal(session_id=name).param == "session_id"
        assert ask(Policy(session_header=name), session_id="fine").session_id == "fine"
        labelled = ask(Policy(session_header=name))
        assert (labelled.session_id, labelled.ignored) == (None, ("X-Session-Id",))
        assert refusal(session_id=5).param == "session_id"


@pytest.mark.parametrize(("seed", "drawn"), [(-1, None), (0, 0), (-2, -2)])
def test_seed_minus_one_is_any_seed(seed: int, drawn: int | None) -> None:
    """Clients' word for a random one."""
    found = ask(seed=seed)
    assert found.sampling.seed == drawn


class TestUnsupported:
    def test_n_must_be_1(self) -> None:
        """N ≠ 1: A's example, word for word."""
        error = refusal(n=2)
        assert error.body.as_wire() == {
            "error": {"message": "n must be 1", "type": "invalid_request_error", "param": "n", "code": None}
        }
        for n in (0, 1.0, "1", True):
            assert refusal(n=n).message == "n must be 1"
        assert ask(n=1) == ask()

    def test_log_probabilities_are_refused(self) -> None:
        """Logprobs true and top_logprobs but 0: 400 with that param, which names the setting."""
        assert refusal(logprobs=True).message == f"logprobs must be false{SERVED}"
        assert refusal(logprobs=1).param == "logprobs"
        assert refusal(top_logprobs=2).message == f"top_logprobs must be 0{SERVED}"
        assert refusal(top_logprobs=2).param == "top_logprobs"
        assert ask(logprobs=False, top_logprobs=0) == ask()

    @pytest.mark.parametrize("kind", ["text", "json_object"])
    def test_plain_response_formats_are_accepted(self, kind: str) -> None:
        """Text and json_object accepted, without effect."""
        assert ask(response_format={"type": kind}) == ask()

    @pytest.mark.parametrize(
        "given", [{"type": "json_schema", "json_schema": {}}, {"type": "x"}, {}, "text", {"type": []}]
    )
    def test_other_response_formats_are_refused(self, given: object) -> None:
        """Json_schema and unknown formats: 400 param response_format."""
        assert refusal(response_format=given).param == "response_format"


class TestUnknownFields:
    def test_are_ignored_unless_strict(self) -> None:
        """Unknown top-level fields: ignored under auto and false, refused under true with a code."""
        assert ask(frobnicate=1) == ask(Policy(strict_fields="false"), frobnicate=1) == ask()
        error = refusal(Policy(strict_fields="true"), frobnicate=1)
        assert (error.param, error.code) == ("frobnicate", "invalid_parameter")

    def test_further_down_are_always_ignored(self) -> None:
        """Strictness stops at the top level."""
        messages = [{**USER, "cache_control": {}}]
        assert ask(Policy(strict_fields="true"), messages=messages) == ask()


def test_fields_are_checked_in_the_tables_order() -> None:
    """Whatever the body's order, the first wrong line of the table is reported."""
    wrong: dict[str, Any] = {
        "model": 1,
        "messages": [],
        "tools": 1,
        "tool_choice": "required",
        "temperature": 9,
        "top_p": 9,
        "top_k": -9,
        "max_completion_tokens": 0,
        "max_tokens": 0,
        "stop": "",
        "seed": "x",
        "stream": 1,
        "stream_options": 1,
        "repetition_penalty": 0,
        "chat_template_kwargs": {"x": 1},
        "include_reasoning": 1,
        "presence_penalty": "x",
        "frequency_penalty": "x",
        "top_logprobs": 5,
        "session_id": "",
        "n": 2,
        "logprobs": True,
        "response_format": 1,
        "frobnicate": 1,
    }
    blames = []
    while wrong:
        body = dict(reversed(wrong.items()))
        if "messages" not in body:
            body["messages"] = [USER]
        with pytest.raises(InvalidField) as caught:
            ChatAdapter().structure(body, Policy(strict_fields="true"))
        first = caught.value.param.partition(".")[0]
        blames.append(first)
        assert first == next(iter(wrong))
        del wrong[first]
    assert blames[0] == "model"
    assert blames[-1] == "frobnicate"
