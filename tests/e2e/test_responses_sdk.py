"""The real openai SDK on /v1/responses: every event in its own type, helpers, and stored responses."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import responses as kinds

TOOLS: list[Any] = [
    {
        "type": "function",
        "name": name,
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": False,
    }
    for name in ("get_weather", "get_time")
]
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lagos"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {"city": "Quito"}}\n</tool_call>'
)
SCRIPT = (
    {"match": "plain", "pieces": ["</think>", "Just ", "text."]},
    {"match": "think", "pieces": ["We ", "think.", "</think>", "\n\n", "So it ", "is."]},
    {"match": "tools", "pieces": ["Two calls.", "</think>", "\n\nLet me look.\n\n", CALLS[:30], CALLS[30:]]},
    {"match": "cut", "pieces": ["</think>", "a ", "b ", "c ", "d "]},
    {"match": "muse", "pieces": ["a ", "b ", "c "]},
    {"match": "break", "pieces": ["r", "</think>", "half"], "finish": "error", "delay_ms": 5},
)
EVENT_TYPES: dict[str, Any] = {
    "response.created": kinds.ResponseCreatedEvent,
    "response.in_progress": kinds.ResponseInProgressEvent,
    "response.output_item.added": kinds.ResponseOutputItemAddedEvent,
    "response.output_item.done": kinds.ResponseOutputItemDoneEvent,
    "response.content_part.added": kinds.ResponseContentPartAddedEvent,
    "response.content_part.done": kinds.ResponseContentPartDoneEvent,
    "response.output_text.delta": kinds.ResponseTextDeltaEvent,
    "response.output_text.done": kinds.ResponseTextDoneEvent,
    "response.reasoning_text.delta": kinds.ResponseReasoningTextDeltaEvent,
    "response.reasoning_text.done": kinds.ResponseReasoningTextDoneEvent,
    "response.function_call_arguments.delta": kinds.ResponseFunctionCallArgumentsDeltaEvent,
    "response.function_call_arguments.done": kinds.ResponseFunctionCallArgumentsDoneEvent,
    "response.completed": kinds.ResponseCompletedEvent,
    "response.incomplete": kinds.ResponseIncompleteEvent,
    "response.failed": kinds.ResponseFailedEvent,
}
TEXT = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done"]
REASONING = ["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"]
DONE = ["content_part.done", "output_item.done"]
CALL = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]


@pytest.fixture(scope="module")
def server(start_session_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with the recordings above and a response store."""
    folder: pathlib.Path = tmp_path_factory.mktemp("responses")
    script = folder / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT), encoding="utf-8")
    settings = {"MAPLE_RESPONSE_STORE": f"sqlite:{folder}/responses.db"}
    return start_session_server("--scripted", str(script), settings=settings)


@pytest.fixture
def client(server: Any) -> Iterator[OpenAI]:
    """The sync SDK. It does not try again, so that errors show."""
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        yield client


def events_of(client: OpenAI, text: str, **fields: Any) -> list[Any]:
    """All events of one stream, each checked to be of its own type, strictly, and numbered."""
    with client.responses.create(model="m", input=text, stream=True, **fields) as stream:
        events: list[Any] = list(stream)
    for number, event in enumerate(events):
        assert type(event) is EVENT_TYPES[event.type]
        assert event.sequence_number == number
        EVENT_TYPES[event.type].model_validate(event.to_dict(), strict=True)
    return events


def steps(events: list[Any]) -> list[str]:
    """The types without their prefix, runs of one type told once."""
    names = [event.type.removeprefix("response.") for event in events]
    return [name for before, name in zip([None, *names], names, strict=False) if name != before]


def test_text_events(client: OpenAI) -> None:
    """An answer without reasoning: one item, one part, and the deltas make the text."""
    events = events_of(client, "plain")
    assert steps(events) == ["created", "in_progress", *TEXT, *DONE, "completed"]
    assert "".join(event.delta for event in events if event.type.endswith("_text.delta")) == "Just text."
    assert events[-1].response.output_text == "Just text."


def test_reasoning_events(client: OpenAI) -> None:
    """Reasoning is an item of its own, before the message."""
    events = events_of(client, "think")
    assert steps(events) == ["created", "in_progress", *REASONING, *DONE, *TEXT, *DONE, "completed"]
    reasoning, message = events[-1].response.output
    assert isinstance(reasoning, kinds.ResponseReasoningItem)
    assert reasoning.content is not None
    assert reasoning.content[0].text == "We think."
    assert isinstance(message, kinds.ResponseOutputMessage)
    usage = events[-1].response.usage
    assert usage.output_tokens_details.reasoning_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def test_tool_events(client: OpenAI) -> None:
    """Calls are items with ids that a client can answer to."""
    events = events_of(client, "tools", tools=TOOLS)
    assert steps(events) == [
        *("created", "in_progress", *REASONING, *DONE, *TEXT, *DONE),
        *(*CALL, *CALL, "completed"),
    ]
    calls = [item for item in events[-1].response.output if isinstance(item, kinds.ResponseFunctionToolCall)]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("get_weather", {"city": "Lagos"}),
        ("get_time", {"city": "Quito"}),
    ]
    assert len({call.call_id for call in calls}) == 2


@pytest.mark.parametrize(("text", "kind"), [("cut", "message"), ("muse", "reasoning")])
def test_limit_events(client: OpenAI, text: str, kind: str) -> None:
    """A limit ends the open item and the response as incomplete, in the answer as in the reasoning."""
    events = events_of(client, text, max_output_tokens=2)
    response = events[-1].response
    assert steps(events)[-1] == "incomplete"
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.output[-1].type, response.output[-1].status) == (kind, "incomplete")


def test_error_events(client: OpenAI) -> None:
    """A model that breaks after the status line ends in response.failed."""
    events = events_of(client, "break")
    response = events[-1].response
    assert events[-1].type == "response.failed"
    assert (response.status, response.error.code) == ("failed", "server_error")
    assert response.error.message == "generation failed"


@pytest.mark.parametrize("text", ["plain", "think", "tools", "cut"])
def test_the_stream_ends_with_the_whole_answer(client: OpenAI, text: str) -> None:
    """Ids and times aside, the last event's response is what a request without stream gets."""
    limit = 2 if text == "cut" else None
    streamed = events_of(client, text, max_output_tokens=limit, tools=TOOLS)[-1].response.to_dict()
    whole = client.responses.create(model="m", input=text, max_output_tokens=limit, tools=TOOLS).to_dict()

    def comparable(response: dict[str, Any]) -> dict[str, Any]:
        items = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
        return {**response, "id": "", "created_at": 0, "output": items}

    assert comparable(streamed) == comparable(whole)


@pytest.mark.parametrize("text", ["plain", "think", "tools"])
def test_stream_helper(client: OpenAI, text: str) -> None:
    """``responses.stream`` accumulates the events into the same response."""
    with client.responses.stream(model="m", input=text, tools=TOOLS) as stream:
        seen = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.completed" in seen
    whole = client.responses.create(model="m", input=text, tools=TOOLS)
    assert final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]


def test_errors_have_the_sdks_classes(client: OpenAI) -> None:
    """A wrong field, an unknown field, and a response that is not there."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input="plain", temperature=9)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_parameter")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="m", input="plain", extra_body={"oops": 1})
    assert caught.value.param == "oops"
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve("resp_" + "0" * 32)
    assert missing.value.code == "not_found"


def test_stored_responses(client: OpenAI) -> None:
    """Retrieve, list the input in pages, go on from it, delete."""
    first = client.responses.create(model="m", input="think", store=True)
    assert client.responses.retrieve(first.id).output_text == first.output_text == "So it is."
    second = client.responses.create(model="m", input="plain", previous_response_id=first.id, store=True)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    items = list(client.responses.input_items.list(second.id, limit=2, order="asc"))
    assert [item.type for item in items] == ["message", "reasoning", "message", "message"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="m", input="plain", previous_response_id=first.id)
