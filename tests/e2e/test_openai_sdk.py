"""The real openai SDK, sync and async, against a real server that plays recorded outputs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

MODEL = "maple-preview"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather at a place.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lagos"}}\n</tool_call>'
SCRIPT = (
    {"match": "17 * 23", "pieces": ["We multiply", ".\n", "So 391.\n", "</think>", "\n\n", "39", "1"]},
    {"match": "weather", "pieces": ["I need a tool.", "\n</think>\n\n", CALL[:20], CALL[20:]]},
    {"match": "Summarise", "pieces": ["It is warm.\n</think>\n\n", "31 degrees", " in Lagos."]},
    {"match": "no thinking", "pieces": ["\n\nAt once."]},
    {"match": "cut me", "pieces": ["a ", "b ", "c ", "d "]},
    {"match": "slow", "pieces": ["x"] * 1000, "delay_ms": 200},
    {"match": "break at once", "pieces": [], "finish": "error"},
    {"match": "break later", "pieces": ["r</think>", "some text"], "finish": "error", "delay_ms": 5},
    {"match": "Once upon", "pieces": [" a time", ", <think>", " there was"]},
)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def server(start_session_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server with the recordings above and one slot."""
    script = tmp_path_factory.mktemp("sdk") / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT), encoding="utf-8")
    return start_session_server("--scripted", str(script))


@pytest.fixture
def client(server: Any) -> Iterator[OpenAI]:
    """The sync SDK. It does not try again, so that errors show."""
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        yield client


def run(server: Any, work: Any) -> Any:
    """Run ``work(client)`` with the async SDK."""

    async def main() -> Any:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            return await work(client)

    return asyncio.run(main())


def joined(chunks: list[Any]) -> tuple[str, str, str | None]:
    """A stream's reasoning, content and finish reason."""
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    reasoning = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
    finish = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
    return reasoning, "".join(delta.content or "" for delta in deltas), finish


def check_whole(answer: Any) -> None:
    message = answer.choices[0].message
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    assert (message.role, message.content) == ("assistant", "391")
    assert message.model_extra["reasoning_content"] == "We multiply.\nSo 391."
    assert message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 7
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7


def test_chat(client: OpenAI) -> None:
    """A chat completion has the answer, the reasoning beside it, and counts."""
    check_whole(client.chat.completions.create(model=MODEL, messages=[user("17 * 23?")]))


def test_chat_async(server: Any) -> None:
    """The same with the async client."""
    check_whole(run(server, lambda c: c.chat.completions.create(model=MODEL, messages=[user("17 * 23?")])))


def test_stream(client: OpenAI) -> None:
    """The stream tells the same, one id throughout, usage last and only if asked for."""
    fields: dict[str, Any] = {"model": MODEL, "messages": [user("17 * 23?")], "stream": True}
    chunks = list(client.chat.completions.create(**fields, stream_options={"include_usage": True}))
    assert joined(chunks) == ("We multiply.\nSo 391.", "391", "stop")
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 7
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**fields))


def test_stream_async(server: Any) -> None:
    """The same with the async client."""

    async def work(client: AsyncOpenAI) -> list[Any]:
        stream = await client.chat.completions.create(model=MODEL, messages=[user("17 * 23?")], stream=True)
        return [chunk async for chunk in stream]

    assert joined(run(server, work)) == ("We multiply.\nSo 391.", "391", "stop")


def test_stream_helper(client: OpenAI) -> None:
    """The SDK's own accumulator ends with the whole answer."""
    with client.chat.completions.stream(model=MODEL, messages=[user("17 * 23?")]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "391"
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)


def test_many_at_once(server: Any) -> None:
    """Requests that wait for the one slot are all answered."""

    async def work(client: AsyncOpenAI) -> list[Any]:
        asks = [client.chat.completions.create(model=MODEL, messages=[user("17 * 23?")]) for _ in range(12)]
        return await asyncio.gather(*asks)

    answers = run(server, work)
    assert {answer.choices[0].message.content for answer in answers} == {"391"}
    assert len({answer.id for answer in answers}) == 12


def second_turn(first: Any) -> list[Any]:
    """The conversation that follows a call, with the assistant's message as the SDK gave it."""
    call = first.choices[0].message.tool_calls[0]
    answer = {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 31}'}
    return [user("What is the weather in Lagos?"), first.choices[0].message, answer, user("Summarise it.")]


def check_call(first: Any) -> None:
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.model_extra["reasoning_content"] == "I need a tool."
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Lagos"}
    assert call.id.startswith("call_")


def test_tools_round_trip(client: OpenAI) -> None:
    """A call and its result go back into a second turn, which is answered."""
    question = [user("What is the weather in Lagos?")]
    first = client.chat.completions.create(model=MODEL, messages=question, tools=[WEATHER])
    check_call(first)
    second = client.chat.completions.create(model=MODEL, messages=second_turn(first), tools=[WEATHER])
    assert second.choices[0].message.content == "31 degrees in Lagos."
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_tools_round_trip_async(server: Any) -> None:
    """The same with the async client."""

    async def work(client: AsyncOpenAI) -> tuple[Any, Any]:
        question = [user("What is the weather in Lagos?")]
        first = await client.chat.completions.create(model=MODEL, messages=question, tools=[WEATHER])
        return first, await client.chat.completions.create(
            model=MODEL, messages=second_turn(first), tools=[WEATHER]
        )

    first, second = run(server, work)
    check_call(first)
    assert second.choices[0].message.content == "31 degrees in Lagos."


def test_tool_call_in_a_stream(client: OpenAI) -> None:
    """A streamed call comes whole, in one delta."""
    question = [user("What is the weather in Lagos?")]
    chunks: list[Any] = list(
        client.chat.completions.create(model=MODEL, messages=question, tools=[WEATHER], stream=True)
    )
    (delta,) = [c.choices[0].delta for c in chunks if c.choices[0].delta.tool_calls]
    (call,) = delta.tool_calls
    assert (call.index, call.function.name) == (0, "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Lagos"}
    assert joined(chunks) == ("I need a tool.", "", "tool_calls")


def test_thinking_off_and_reasoning_left_out(client: OpenAI) -> None:
    """enable_thinking false answers at once; include_reasoning false strips the field and still counts."""
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    answer: Any = client.chat.completions.create(model=MODEL, messages=[user("no thinking")], extra_body=off)
    assert answer.choices[0].message.content == "At once."
    assert "reasoning_content" not in answer.choices[0].message.model_extra
    hidden = {"include_reasoning": False}
    answer = client.chat.completions.create(model=MODEL, messages=[user("17 * 23?")], extra_body=hidden)
    assert "reasoning_content" not in answer.choices[0].message.model_extra
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3


def test_limit_and_stop(client: OpenAI) -> None:
    """max_tokens ends as length, a stop string as stop, and is not in the text."""
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    cut = client.chat.completions.create(
        model=MODEL, messages=[user("cut me")], max_completion_tokens=2, extra_body=off
    )
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("a b ", "length")
    stop = client.chat.completions.create(
        model=MODEL, messages=[user("cut me")], stop=["b c"], extra_body=off
    )
    assert (stop.choices[0].message.content, stop.choices[0].finish_reason) == ("a ", "stop")


def test_completions(client: OpenAI) -> None:
    """The raw route answers with text, unparsed, streamed and not."""
    whole = client.completions.create(model=MODEL, prompt="Once upon")
    assert whole.object == "text_completion"
    assert whole.choices[0].text == " a time, <think> there was"
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(client.completions.create(model=MODEL, prompt="Once upon", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_models(client: OpenAI) -> None:
    """The one model can be listed and retrieved."""
    (card,) = client.models.list().data
    assert (card.id, card.object, card.owned_by) == (MODEL, "model", "deepgrove")
    assert client.models.retrieve(MODEL).id == MODEL


def test_request_id(client: OpenAI) -> None:
    """The SDK shows the id that the log has."""
    answer = client.chat.completions.create(
        model=MODEL, messages=[user("17 * 23?")], extra_headers={"X-Request-Id": "mine-1"}
    )
    assert answer._request_id == "mine-1"


def test_bad_request(client: OpenAI) -> None:
    """A refused field is a BadRequestError with message, param and code."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[user("hi")], n=2)
    assert caught.value.body == {
        "message": "n must be 1", "type": "invalid_request_error", "param": "n", "code": None,
    }  # fmt: skip


def test_prompt_too_long(client: OpenAI) -> None:
    """A prompt that cannot fit has its own code and both counts."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[user("9 " * 200_000)])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert "65536" in caught.value.message


def test_generation_failed(client: OpenAI) -> None:
    """A model that breaks is an InternalServerError, without details."""
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=MODEL, messages=[user("break at once")])
    assert caught.value.status_code == 500
    body: Any = caught.value.body
    assert body["message"] == "generation failed"


def test_generation_failed_in_a_stream(client: OpenAI) -> None:
    """After the status line the error comes in band, where the SDK finds it."""
    received: list[Any] = []
    with (
        client.chat.completions.create(model=MODEL, messages=[user("break later")], stream=True) as stream,
        pytest.raises(openai.APIError, match="generation failed"),
    ):
        received.extend(stream)
    assert joined(received)[:2] == ("r", "some text")


def test_other_statuses(client: OpenAI, server: Any) -> None:
    """Statuses without a class of their own are APIStatusErrors; unknown routes and hosts have theirs."""
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=[user("hi")], extra_headers={"Content-Type": "text/plain"}
        )
    assert (caught.value.status_code, caught.value.code) == (415, "unsupported_media_type")
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model=MODEL, messages=[user("x" * (17 << 20))])
    assert (caught.value.status_code, caught.value.code) == (413, "payload_too_large")
    with pytest.raises(openai.PermissionDeniedError) as caught:
        client.models.list(extra_headers={"Host": "evil.example"})
    assert caught.value.code == "host_not_allowed"
    wrong = client.with_options(base_url=server.base_url + "/v1")
    with pytest.raises(openai.NotFoundError) as caught:
        wrong.models.list()
    assert caught.value.code == "route_not_found"


def test_authentication(start_server: Any, write_script: Any) -> None:
    """A wrong key is an AuthenticationError; the right one is let in."""
    server = start_server("--scripted", write_script(*SCRIPT), settings={"MAPLE_API_KEY": "secret"})
    with OpenAI(base_url=server.base_url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model=MODEL, messages=[user("17 * 23?")])
        assert caught.value.code == "invalid_api_key"
        right = client.with_options(api_key="secret")
        check_whole(right.chat.completions.create(model=MODEL, messages=[user("17 * 23?")]))
    assert "secret" not in server.log


def test_strict_model(start_server: Any, write_script: Any) -> None:
    """Another model's name is a NotFoundError where the server is strict."""
    server = start_server("--scripted", write_script(*SCRIPT), "--strict-model")
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="gpt-4o", messages=[user("17 * 23?")])
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-4o")


def test_queue_full(start_server: Any, write_script: Any) -> None:
    """With nobody allowed to wait, the second request is refused at once, and says when to come back."""
    server = start_server("--scripted", write_script(*SCRIPT), "--max-queue-depth", "0")
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        with client.chat.completions.create(model=MODEL, messages=[user("slow")], stream=True) as stream:
            next(iter(stream))
            with pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(model=MODEL, messages=[user("17 * 23?")])
        assert (caught.value.status_code, caught.value.code) == (503, "engine_overloaded")
        assert caught.value.response.headers["Retry-After"] == "5"
        server.wait_for_stats(running=0)
        check_whole(client.chat.completions.create(model=MODEL, messages=[user("17 * 23?")]))


def test_timeout_frees_the_slot(start_server: Any, write_script: Any) -> None:
    """A client that loses its patience gets the SDK's timeout; the server drops the generation."""
    server = start_server("--scripted", write_script(*SCRIPT))
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0, timeout=0.5) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model=MODEL, messages=[user("slow")])
        assert server.wait_for_stats(running=0, waiting=0)["cancelled"] == 1
        check_whole(client.chat.completions.create(model=MODEL, messages=[user("17 * 23?")]))


def test_closing_a_stream_cancels(start_server: Any, write_script: Any) -> None:
    """Leaving a stream early ends the generation."""
    server = start_server("--scripted", write_script(*SCRIPT))
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        with client.chat.completions.create(model=MODEL, messages=[user("slow")], stream=True) as stream:
            next(iter(stream))
        assert server.wait_for_stats(running=0, cancelled=1)["waiting"] == 0


def test_cancelling_a_task_cancels(start_server: Any, write_script: Any) -> None:
    """A cancelled asyncio task takes its request with it, streamed or not."""
    server = start_server("--scripted", write_script(*SCRIPT))

    async def work(client: AsyncOpenAI) -> None:
        for stream in (False, True):
            asking = asyncio.create_task(_consume(client, stream=stream))
            await asyncio.to_thread(server.wait_for_stats, running=1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await asyncio.to_thread(server.wait_for_stats, running=0)

    run(server, work)
    assert server.stats()["cancelled"] == 2


async def _consume(client: AsyncOpenAI, *, stream: bool) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=[user("slow")], stream=stream)
    if stream:
        async for _ in answer:
            pass
