"""What the official SDK's own types make of our answers."""

from __future__ import annotations

from typing import Any

import pytest
from maple_plugins.events import ContentDelta, ReasoningDelta
from maple_protocols.adapter import (
    Done,
    GenerationAdapter,
    Identity,
    NumberedCall,
    Policy,
    ServedModel,
    TurnEvent,
    Usage,
)
from maple_protocols.errors import ErrorBody
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.completions import CompletionsAdapter
from maple_protocols.openai.models import ModelsAdapter
from maple_protocols.openai.responses import ResponsesAdapter

types = pytest.importorskip("openai.types", reason="the openai SDK is not installed here")
chat_types = pytest.importorskip("openai.types.chat", reason="the openai SDK is not installed here")

IDENTITY = Identity(key="ab" * 16, created=1_789_460_000, model="maple-preview")
DONE = Done(finish="tool_calls", usage=Usage(prompt_tokens=3, completion_tokens=2, reasoning_tokens=1))
CALL = NumberedCall(index=0, id="call_" + "0" * 24, name="look", arguments="{}")


def answers(
    adapter: GenerationAdapter, body: dict[str, Any], events: list[TurnEvent]
) -> tuple[Any, list[Any]]:
    """The whole answer, and the stream's JSON values."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    ask = adapter.structure({**body, **options}, Policy(vocabulary=10))
    encoder, fold = adapter.encoder(ask, IDENTITY), adapter.fold(ask, IDENTITY)
    frames = [*encoder.opening()]
    for event in events:
        frames += encoder.event(event)
        fold.event(event)
    return fold.body(), [frame.data for frame in frames]


def test_chat_answers_validate() -> None:
    """Pydantic's strict reading of the SDK's chat types takes the answer and every chunk."""
    messages = [{"role": "user", "content": "hi"}]
    events: list[TurnEvent] = [ReasoningDelta("hm"), ContentDelta("a"), CALL, DONE]
    whole, chunks = answers(ChatAdapter(), {"messages": messages}, events)
    parsed = chat_types.ChatCompletion.model_validate(whole)
    message = parsed.choices[0].message
    assert (message.content, message.model_extra["reasoning_content"]) == ("a", "hm")
    assert message.tool_calls[0].function.name == "look"
    assert parsed.usage.completion_tokens_details.reasoning_tokens == 1
    read = [chat_types.ChatCompletionChunk.model_validate(chunk) for chunk in chunks]
    assert read[-1].usage.total_tokens == 5
    assert read[-2].choices[0].finish_reason == "tool_calls"


def test_completion_answers_validate() -> None:
    """The SDK's completion type takes the answer; a chunk lacks only a finish reason so far."""
    done = Done(finish="stop", usage=DONE.usage)
    whole, chunks = answers(CompletionsAdapter(), {"prompt": "a"}, [ContentDelta("b"), done])
    assert types.Completion.model_validate(whole).choices[0].text == "b"
    read = [types.Completion.construct(**chunk) for chunk in chunks]
    assert read[0].choices[0].text == "b"
    assert read[-1].usage.total_tokens == 5


def test_the_model_card_validates() -> None:
    """The SDK's model type takes the card."""
    served = ServedModel(id="m", created=1, max_model_len=5, strict=False)
    assert types.Model.model_validate(ModelsAdapter().answer(served, "m")).owned_by == "deepgrove"


FINISHES = {"stop": "response.completed", "length": "response.incomplete"}


@pytest.mark.parametrize("finish", ["stop", "length", "error"])
def test_every_response_event_validates(finish: Any) -> None:
    """Pydantic's strict reading of the SDK's event union takes text, reasoning, tools, limit and error."""
    pydantic = pytest.importorskip("pydantic", reason="it comes with the openai SDK")
    responses = pytest.importorskip("openai.types.responses", reason="the openai SDK is not installed here")
    reader = pydantic.TypeAdapter(responses.ResponseStreamEvent)
    tools = [{"type": "function", "name": "look"}]
    body = {
        "input": "hi",
        "stream": True,
        "tools": tools,
        "tool_choice": tools[0],
        "reasoning": {"effort": "low"},
    }
    adapter = ResponsesAdapter()
    ask = adapter.structure(body, Policy())
    encoder = adapter.encoder(ask, IDENTITY)
    frames = [*encoder.opening()]
    for event in (ReasoningDelta("hm"), ContentDelta("a"), CALL, ContentDelta("b")):
        frames += encoder.event(event)
    if finish == "error":
        frames += encoder.failure(ErrorBody(message="generation failed", type="server_error"))
    else:
        frames += encoder.event(Done(finish=finish, usage=DONE.usage))
    parsed = [reader.validate_python(frame.data) for frame in frames]
    assert [event.type for event in parsed] == [frame.event for frame in frames]
    assert parsed[-1].type == FINISHES.get(finish, "response.failed")
    last = responses.Response.model_validate(frames[-1].data["response"])  # type: ignore[index]
    assert last.output_text == "ab"
    assert [item.type for item in last.output] == ["reasoning", "message", "function_call", "message"]
    assert last.tool_choice.name == "look"
