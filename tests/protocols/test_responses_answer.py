"""The contract's responses route, outwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maple_plugins.events import ContentDelta, ReasoningDelta
from maple_protocols.adapter import Done, Frame, Identity, NumberedCall, Policy, TurnEvent, Usage
from maple_protocols.ask import Ask
from maple_protocols.errors import ErrorBody
from maple_protocols.openai.responses import ResponsesAdapter

KEY = "0123456789abcdef" * 2
IDENTITY = Identity(key=KEY, created=1_789_460_000, model="maple-preview")
USAGE = Usage(prompt_tokens=22, completion_tokens=33, cached_tokens=5, reasoning_tokens=27)
CALL = NumberedCall(index=0, id="call_" + "0" * 24, name="look", arguments='{"a": 1}')
DONE = Done(finish="stop", usage=USAGE)
CUT = Done(finish="length", usage=USAGE)
ERROR = ErrorBody(message="generation failed", type="server_error")


def ask(**fields: Any) -> Ask:
    return ResponsesAdapter().structure({"input": "hi", "stream": True, **fields}, Policy())


def stream(
    events: Sequence[TurnEvent], wish: Ask | None = None, error: ErrorBody | None = None
) -> list[Frame]:
    encoder = ResponsesAdapter().encoder(wish or ask(), IDENTITY)
    frames = [*encoder.opening()]
    for event in events:
        frames += encoder.event(event)
    if error:
        frames += encoder.failure(error)
    return [*frames, *encoder.closing()]


def values(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    return [frame.data for frame in frames if isinstance(frame.data, dict)]


def kinds(frames: Sequence[Frame]) -> list[str]:
    return [value["type"].removeprefix("response.") for value in values(frames)]


def whole(events: Sequence[TurnEvent], wish: Ask | None = None) -> dict[str, Any]:
    fold = ResponsesAdapter().fold(wish or ask(), IDENTITY)
    for event in events:
        fold.event(event)
    return fold.body()


ITEMS = [
    {
        "id": f"rs_{KEY}0000",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    },
    {
        "id": f"msg_{KEY}0001",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}],
    },
    {
        "id": f"fc_{KEY}0002",
        "type": "function_call",
        "status": "completed",
        "call_id": CALL.id,
        "name": "look",
        "arguments": '{"a": 1}',
    },
]
ANSWER: list[TurnEvent] = [ReasoningDelta("hm"), ContentDelta("a"), ContentDelta("b"), CALL, DONE]


def test_the_whole_response() -> None:
    """Every key of the contract, the request's own fields among them."""
    wish = ask(instructions="i", temperature=0.5, metadata={"k": "v"}, max_output_tokens=50)
    assert whole(ANSWER, wish) == {
        "id": f"resp_{KEY}",
        "object": "response",
        "created_at": 1_789_460_000,
        "status": "completed",
        "completed_at": 0,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": "maple-preview",
        "output": ITEMS,
        "output_text": "ab",
        "usage": {
            "input_tokens": 22,
            "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
            "output_tokens": 33,
            "output_tokens_details": {"reasoning_tokens": 27},
            "total_tokens": 55,
        },
        "instructions": "i",
        "max_output_tokens": 50,
        "metadata": {"k": "v"},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "max_tool_calls": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "prompt_cache_key": None,
        "safety_identifier": None,
        "service_tier": "default",
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": None,
    }


def test_the_stream_names_every_step() -> None:
    """Items open, grow and close in order, with tools too; the last event is the whole response."""
    frames = stream(ANSWER)
    assert kinds(frames) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert values(frames)[-1]["response"] == whole(ANSWER)
    assert frames[-1] == Frame(data="[DONE]")


def test_frames_are_named_and_numbered() -> None:
    """``event:`` repeats the type, ``sequence_number`` counts from 0."""
    frames = stream(ANSWER)[:-1]
    assert [frame.event for frame in frames] == [value["type"] for value in values(frames)]
    assert [value["sequence_number"] for value in values(frames)] == list(range(len(frames)))


def test_the_response_begins_empty() -> None:
    """Created and in_progress carry the response as it is then, also when looked at later."""
    created, in_progress, *_ = values(stream(ANSWER))
    for value in (created, in_progress):
        response = value["response"]
        assert (response["status"], response["output"], response["usage"]) == ("in_progress", [], None)


def test_items_begin_empty_and_are_done_whole() -> None:
    """Added items hold nothing yet; done items are those of the response."""
    found = values(stream(ANSWER))
    added = [value["item"] for value in found if value["type"] == "response.output_item.added"]
    done = [value["item"] for value in found if value["type"] == "response.output_item.done"]
    assert [item["status"] for item in added] == ["in_progress"] * 3
    assert [item.get("content", item.get("arguments")) for item in added] == [[], [], ""]
    assert done == ITEMS
    places = [value["output_index"] for value in found if "item" in value]
    assert places == [0, 0, 1, 1, 2, 2]
    parts = [value["part"]["text"] for value in found if "part" in value]
    assert parts == ["", "hm", "", "ab"]


def test_every_event_of_an_item_names_it() -> None:
    """item_id, output_index and content_index point to where the text goes."""
    for value in values(stream(ANSWER)):
        if "item_id" in value:
            assert value["item_id"] == ITEMS[value["output_index"]]["id"]
            assert value.get("content_index", 0) == 0


def test_text_events_carry_their_text() -> None:
    """Deltas as they come, done with the whole; output text has (empty) logprobs."""
    found = {value["type"].removeprefix("response."): value for value in values(stream(ANSWER))}
    assert found["reasoning_text.delta"]["delta"] == found["reasoning_text.done"]["text"] == "hm"
    assert (found["output_text.delta"]["delta"], found["output_text.done"]["text"]) == ("b", "ab")
    assert found["output_text.delta"]["logprobs"] == found["output_text.done"]["logprobs"] == []
    arguments = found["function_call_arguments.done"]["arguments"]
    assert found["function_call_arguments.delta"]["delta"] == arguments == CALL.arguments


def test_a_limit_makes_it_incomplete() -> None:
    """Status incomplete, the reason max_output_tokens; so is the item that was cut."""
    frames = stream([ReasoningDelta("hm"), CUT])
    assert kinds(frames)[-1] == "incomplete"
    response = values(frames)[-1]["response"]
    assert response == whole([ReasoningDelta("hm"), CUT])
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert whole([CALL, CUT])["output"][0]["status"] == "completed"


def test_a_failure_keeps_what_there_is() -> None:
    """response.failed with the error, then ``[DONE]``; what was sent so far stays in the output."""
    frames = stream([ReasoningDelta("hm"), ContentDelta("a")], error=ERROR)
    failed = values(frames)[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "generation failed"}
    assert [item["status"] for item in failed["response"]["output"]] == ["completed", "incomplete"]
    assert failed["response"]["output_text"] == "a"
    assert frames[-1].data == "[DONE]"
    assert kinds(stream([], error=ERROR)) == ["created", "in_progress", "failed"]


def test_hidden_reasoning_has_no_item() -> None:
    """Reasoning items unless excluded; usage counts them all the same."""
    hidden = ask(include_reasoning=False)
    response = whole(ANSWER, hidden)
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 27}
    assert not [kind for kind in kinds(stream(ANSWER, hidden)) if "reasoning" in kind]


def test_text_after_a_call_is_another_message() -> None:
    """Output items stand in generation order; output_text joins all messages."""
    response = whole([ContentDelta("a"), CALL, ContentDelta("b"), DONE])
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "message"]
    assert len({item["id"] for item in response["output"]}) == 3
    assert response["output_text"] == "ab"


texts = st.text(min_size=1, max_size=4)
bodies = st.lists(
    st.one_of(st.builds(ReasoningDelta, texts), st.builds(ContentDelta, texts), texts), max_size=12
)


def fold_as_a_client(frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """The output items that deltas alone make."""
    items: list[dict[str, Any]] = []
    for value in values(frames):
        kind = value["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert value["output_index"] == len(items)
            items.append({**value["item"], "status": "completed"})
        elif kind == "content_part.added":
            items[value["output_index"]]["content"] = [dict(value["part"])]
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            items[value["output_index"]]["content"][0]["text"] += value["delta"]
        elif kind == "function_call_arguments.delta":
            items[value["output_index"]]["arguments"] += value["delta"]
    return items


@settings(deadline=None)
@given(bodies, st.booleans())
def test_the_stream_folds_to_the_whole_response(body: list[Any], reasoning: bool) -> None:
    """For every sequence of events, what a client folds from the deltas is the response's output."""
    calls = iter(range(100))
    events: list[TurnEvent] = [
        NumberedCall(index=next(calls), id="call_x", name=item, arguments="{}")
        if isinstance(item, str)
        else item
        for item in body
    ]
    wish = ask(include_reasoning=reasoning)
    frames = stream([*events, DONE], wish)
    response = whole([*events, DONE], wish)
    assert fold_as_a_client(frames) == response["output"]
    assert values(frames)[-1]["response"] == response
    done = [value["item"] for value in values(frames) if value["type"] == "response.output_item.done"]
    assert done == response["output"]


@pytest.mark.parametrize("events", [[DONE], [CUT]])
def test_nothing_said_is_no_item(events: list[TurnEvent]) -> None:
    """An empty answer has an empty output."""
    response = whole(events)
    assert (response["output"], response["output_text"]) == ([], "")
