"""The chat answer, streamed and whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maple_plugins.events import ContentDelta, ReasoningDelta
from maple_protocols.adapter import Done, Frame, Identity, NumberedCall, TurnEvent, Usage
from maple_protocols.ask import Ask, Conversation
from maple_protocols.errors import ErrorBody
from maple_protocols.openai.chat import ChatAdapter

IDENTITY = Identity(key="0123456789abcdef" * 2, created=1_789_460_000, model="maple-preview")
USAGE = Usage(prompt_tokens=22, completion_tokens=33, cached_tokens=5, reasoning_tokens=27)
USAGE_BODY = {
    "prompt_tokens": 22,
    "completion_tokens": 33,
    "total_tokens": 55,
    "prompt_tokens_details": {"cached_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 27},
}


def ask(**fields: Any) -> Ask:
    return Ask(prompt=Conversation(messages=()), **fields)


def call(index: int, name: str = "look", arguments: str = '{"a": 1}') -> NumberedCall:
    return NumberedCall(index=index, id=f"call_{index:024x}", name=name, arguments=arguments)


def stream(events: Sequence[TurnEvent], wish: Ask | None = None) -> list[Frame]:
    encoder = ChatAdapter().encoder(wish or ask(), IDENTITY)
    middle = [frame for event in events for frame in encoder.event(event)]
    return [*encoder.opening(), *middle, *encoder.closing()]


def whole(events: Sequence[TurnEvent], wish: Ask | None = None) -> dict[str, Any]:
    fold = ChatAdapter().fold(wish or ask(), IDENTITY)
    for event in events:
        fold.event(event)
    return fold.body()


def chunks(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    return [frame.data for frame in frames if isinstance(frame.data, dict)]


def deltas(events: Sequence[TurnEvent], wish: Ask | None = None) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks(stream(events, wish)) if chunk["choices"]]


ANSWER: list[TurnEvent] = [
    ReasoningDelta("We need"),
    ReasoningDelta(" to answer"),
    ContentDelta("391"),
    Done(finish="stop", usage=USAGE),
]


def test_the_whole_answer_is_as_in_the_reference() -> None:
    """Every key of A's example, ``logprobs: null`` in the choice."""
    assert whole(ANSWER) == {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion",
        "created": 1_789_460_000,
        "model": "maple-preview",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "391", "reasoning_content": "We need to answer"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE_BODY,
    }


def test_the_stream_runs_role_reasoning_content_finish_done() -> None:
    """Role chunk, deltas, the empty delta with finish_reason, ``[DONE]``; every chunk has the five keys."""
    frames = stream(ANSWER)
    assert deltas(ANSWER) == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "We need"},
        {"reasoning_content": " to answer"},
        {"content": "391"},
        {},
    ]
    assert [frame.event for frame in frames] == [None] * 6
    assert frames[-1].data == "[DONE]"
    for chunk in chunks(frames):
        assert {**chunk, "choices": None} == {
            "id": f"chatcmpl-{IDENTITY.key}",
            "object": "chat.completion.chunk",
            "created": 1_789_460_000,
            "model": "maple-preview",
            "choices": None,
        }
        assert {**chunk["choices"][0], "delta": None, "finish_reason": None} == {
            "index": 0,
            "delta": None,
            "logprobs": None,
            "finish_reason": None,
        }
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks(frames)] == [
        None,
        None,
        None,
        None,
        "stop",
    ]


def test_the_usage_chunk_comes_last_if_asked_for() -> None:
    """Usage: one chunk with ``choices: []`` between the finish chunk and ``[DONE]``."""
    *_, finish, usage, done = stream(ANSWER, ask(include_usage=True))
    assert chunks([finish])[0]["choices"][0]["finish_reason"] == "stop"
    assert chunks([usage])[0] == {**chunks([finish])[0], "choices": [], "usage": USAGE_BODY}
    assert done.data == "[DONE]"


def test_a_call_is_one_whole_delta() -> None:
    """One whole tool_calls delta a call, in generation order, indices from 0."""
    events: list[TurnEvent] = [
        call(0),
        ContentDelta("and"),
        call(1, "b", "{}"),
        Done(finish="tool_calls", usage=USAGE),
    ]
    expected = [
        {"id": f"call_{0:024x}", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
        {"id": f"call_{1:024x}", "type": "function", "function": {"name": "b", "arguments": "{}"}},
    ]
    assert deltas(events)[1:-1] == [
        {"tool_calls": [{"index": 0, **expected[0]}]},
        {"content": "and"},
        {"tool_calls": [{"index": 1, **expected[1]}]},
    ]
    message = whole(events)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "and", "tool_calls": expected}


@pytest.mark.parametrize(
    ("events", "content"),
    [
        ([call(0)], None),
        ([ReasoningDelta("hm"), call(0)], None),
        ([call(0), ContentDelta("x")], "x"),
        ([], ""),
        ([ReasoningDelta("hm")], ""),
    ],
)
def test_content_is_null_only_for_calls_alone(events: list[TurnEvent], content: str | None) -> None:
    """Content null only when the whole answer was tool calls, "" when there is none for another reason."""
    message = whole([*events, Done(finish="length", usage=USAGE)])["choices"][0]["message"]
    assert message["content"] == content


def test_empty_reasoning_has_no_field() -> None:
    """Empty reasoning means no ``reasoning_content`` field."""
    assert "reasoning_content" not in whole([ContentDelta("x"), ANSWER[-1]])["choices"][0]["message"]


def test_hidden_reasoning_leaves_no_trace_but_its_count() -> None:
    """Include_reasoning false strips the field from both forms; usage still counts."""
    hidden = ask(include_reasoning=False)
    assert whole(ANSWER, hidden)["choices"][0]["message"] == {"role": "assistant", "content": "391"}
    assert whole(ANSWER, hidden)["usage"] == USAGE_BODY
    assert deltas(ANSWER, hidden) == [{"role": "assistant", "content": ""}, {"content": "391"}, {}]


def test_a_failure_is_one_error_event() -> None:
    """A failure after the status line: one error event, then ``[DONE]``, no finish chunk."""
    encoder = ChatAdapter().encoder(ask(), IDENTITY)
    error = ErrorBody(message="generation failed", type="server_error")
    frames = [*encoder.failure(error), *encoder.closing()]
    assert [frame.data for frame in frames] == [
        {"error": {"message": "generation failed", "type": "server_error", "param": None, "code": None}},
        "[DONE]",
    ]


texts = st.text(min_size=1, max_size=5)
bodies = st.lists(
    st.one_of(st.builds(ReasoningDelta, texts), st.builds(ContentDelta, texts), texts), max_size=12
)


def numbered(body: list[Any]) -> list[TurnEvent]:
    """Plain strings become calls, numbered in order."""
    events: list[TurnEvent] = []
    for item in body:
        calls = sum(isinstance(event, NumberedCall) for event in events)
        events.append(call(calls, item, "{}") if isinstance(item, str) else item)
    return events


def fold_as_a_client(frames: Sequence[Frame]) -> dict[str, Any]:
    """What a client that knows only the stream would put together."""
    message: dict[str, Any] = {"role": None, "content": ""}
    finish, usage, head = None, None, {}
    for chunk in chunks(frames):
        head = {key: chunk[key] for key in ("id", "created", "model")}
        usage = chunk.get("usage", usage)
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            delta = choice["delta"]
            message["role"] = delta.get("role", message["role"])
            message["content"] += delta.get("content", "")
            if "reasoning_content" in delta:
                message["reasoning_content"] = (
                    message.get("reasoning_content", "") + delta["reasoning_content"]
                )
            for part in delta.get("tool_calls", ()):
                found = message.setdefault("tool_calls", [])
                assert part["index"] == len(found)
                found.append({key: value for key, value in part.items() if key != "index"})
    if "tool_calls" in message:
        message["content"] = message["content"] or None
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


@settings(deadline=None)
@given(bodies, st.sampled_from(["stop", "length", "tool_calls"]), st.sampled_from([True, False, None]))
def test_the_stream_folds_to_the_whole_answer(body: list[Any], finish: Any, reasoning: bool | None) -> None:
    """For every sequence of events, what a client folds from the chunks is the non-stream answer."""
    wish = ask(include_usage=True, include_reasoning=reasoning)
    events = [*numbered(body), Done(finish=finish, usage=USAGE)]
    assert fold_as_a_client(stream(events, wish)) == whole(events, wish)


@settings(deadline=None)
@given(bodies)
def test_no_delta_is_empty_but_the_last(body: list[Any]) -> None:
    """Only the finish chunk has an empty delta, and only the role chunk an empty content."""
    found = deltas([*numbered(body), Done(finish="stop", usage=USAGE)])
    assert found[0] == {"role": "assistant", "content": ""}
    assert found[-1] == {}
    assert all(next(iter(delta.values())) for delta in found[1:-1])
