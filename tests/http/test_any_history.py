"""Whatever a client can hold in its history is answered, and every text of it is rendered once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner, max_size=3),
    max_leaves=8,
)


class Words:
    """Texts that occur once each; those of the messages that are always rendered are remembered."""

    def __init__(self) -> None:
        self.count = 0
        self.shown: list[str] = []

    def new(self, *, shown: bool = True) -> str:
        self.count += 1
        word = f"word{self.count}x"
        if shown:
            self.shown.append(word)
        return word


MEDIA: tuple[dict[str, Any], ...] = (
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "input_image", "image_url": "data:", "detail": "auto"},
    {"type": "image", "source": {"type": "base64", "data": "AA"}},
    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    {"type": "input_file", "filename": "a.pdf"},
    {"type": "file", "file": {"file_id": "f"}},
    {"type": "resource_link", "uri": "file:///a", "name": "a"},
    {"type": "next_years_part", "payload": {"a": 1}},
)


@st.composite
def contents(draw: st.DrawFn, words: Words, *kinds: str) -> Any:
    """What a message holds: text, nothing, or parts."""
    match draw(st.integers(0, 3)):
        case 0:
            return words.new()
        case 1:
            return draw(st.sampled_from([None, "", []]))
        case _:
            parts = draw(st.lists(st.sampled_from([*kinds, *kinds, "media"]), min_size=1, max_size=4))
            return [
                dict(draw(st.sampled_from(MEDIA))) if kind == "media" else part(words, kind) for kind in parts
            ]


def part(words: Words, kind: str) -> dict[str, Any]:
    match kind:
        case "refusal":
            return {"type": kind, "refusal": words.new()}
        case "thinking":
            return {"type": kind, "thinking": words.new(shown=False), "signature": "s"}
        case "redacted_thinking":
            return {"type": kind, "data": words.new(shown=False)}
        case _:
            return {"type": kind, "text": words.new(), "annotations": []}


@st.composite
def arguments(draw: st.DrawFn) -> Any:
    """What a call's arguments may be: objects and their text, and all that models and clients make of them."""
    spelled = st.sampled_from(
        ['{"cmd": "ls', "", " ", "null", "[1]", "{'a': 1}", "```json\n{}\n```", '{"a":1}', "5"]
    )
    return draw(spelled | JSON | JSON.map(json.dumps))


REASONING = ("reasoning_content", "reasoning", "nothing")
IDS = st.sampled_from(["call_1", "", "x" * 200, None, 5])


@st.composite
def chat_messages(draw: st.DrawFn, words: Words) -> list[dict[str, Any]]:
    """A conversation in chat's shape, as clients keep it."""
    messages: list[dict[str, Any]] = []
    texts = ("text", "input_text", "output_text")
    for role in draw(
        st.lists(st.sampled_from(["user", "assistant", "tool", "system", "function"]), max_size=8)
    ):
        kinds = (*texts, "refusal", "thinking", "redacted_thinking") if role == "assistant" else texts
        message = {"role": role, "content": draw(contents(words, *kinds)), "name": "n", "extra": draw(JSON)}
        if role == "assistant":
            message[draw(st.sampled_from(REASONING))] = words.new(shown=False)
            message["tool_calls"] = [draw(chat_call(words)) for _ in range(draw(st.integers(0, 2)))] or None
        if role == "tool":
            message["tool_call_id"] = draw(IDS)
            message["content"] = draw(JSON) if message["content"] in (None, "", []) else message["content"]
        messages.append(message)
    return [*messages, {"role": "user", "content": words.new()}]


@st.composite
def chat_call(draw: st.DrawFn, words: Words) -> dict[str, Any]:
    if draw(st.booleans()):
        return {"id": draw(IDS), "type": "custom", "custom": {"name": words.new(), "input": words.new()}}
    function = {"name": words.new(), "arguments": draw(arguments())}
    return {"id": draw(IDS), "type": "function", "function": function, "index": 0}


HOSTED = (
    "web_search_call",
    "mcp_call",
    "compaction",
    "tool_search_output",
    "image_generation_call",
    "next_years_item",
)


@st.composite
def items(draw: st.DrawFn, words: Words) -> list[dict[str, Any]]:
    """A conversation in the shape of responses."""
    found: list[dict[str, Any]] = []
    texts = ("text", "input_text", "output_text")
    kinds = st.sampled_from(
        [
            "user",
            "assistant",
            "call",
            "output",
            "reasoning",
            "custom",
            "custom_output",
            "shell",
            "agent",
            "hosted",
        ]
    )
    for kind in draw(st.lists(kinds, max_size=8)):
        match kind:
            case "user" | "assistant":
                also = ("refusal", "thinking") if kind == "assistant" else ()
                found.append(
                    {"type": "message", "role": kind, "content": draw(contents(words, *texts, *also))}
                )
            case "call":
                call = {"type": "function_call", "call_id": draw(IDS), "name": words.new(), "id": "fc_1"}
                found.append(
                    {**call, "arguments": draw(arguments()), "namespace": draw(st.none() | st.just("n"))}
                )
            case "output":
                output = draw(contents(words, *texts) | JSON)
                found.append({"type": "function_call_output", "call_id": draw(IDS), "output": output})
            case "reasoning":
                summary = [{"type": "summary_text", "text": words.new(shown=False)}]
                found.append(
                    {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": None}
                )
            case "custom":
                found.append(
                    {"type": "custom_tool_call", "call_id": "c", "name": words.new(), "input": words.new()}
                )
            case "custom_output":
                found.append(
                    {
                        "type": "custom_tool_call_output",
                        "call_id": "c",
                        "output": draw(contents(words, *texts)),
                    }
                )
            case "shell":
                found.append(
                    {
                        "type": "local_shell_call",
                        "id": "l",
                        "action": {"type": "exec", "command": [words.new()]},
                    }
                )
            case "agent":
                found.append({"type": "agent_message", "content": draw(contents(words, *texts))})
            case _:
                found.append({"type": draw(st.sampled_from(HOSTED)), "id": "h", "payload": draw(JSON)})
    return [*found, {"role": "user", "content": words.new()}]


@pytest.fixture
def server(serve: Serve) -> LiveServer:
    return serve(api_level="extended")


def check(server: LiveServer, path: str, body: dict[str, Any], words: Words) -> None:
    answer = server.post(path, body)
    assert answer.status == 200, answer.body
    prompt = server.prompt()
    assert {word: prompt.count(word) for word in words.shown} == dict.fromkeys(words.shown, 1)


many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@many
@given(data=st.data())
def test_any_chat_history_is_answered(server: LiveServer, data: st.DataObject) -> None:
    """200, and every text of a message, a result or a call is in the prompt, once."""
    words = Words()
    check(server, CHAT, {"messages": data.draw(chat_messages(words))}, words)


@many
@given(data=st.data())
def test_any_history_of_responses_is_answered(server: LiveServer, data: st.DataObject) -> None:
    """200, and every text of a message, a result or a call is in the prompt, once."""
    words = Words()
    check(server, RESPONSES, {"input": data.draw(items(words))}, words)
