"""Anthropic's own SDK for Python against the server: what it returns, and what it raises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.http.conftest import LiveServer, Serve

    Connect = Callable[..., anthropic.Anthropic]

CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>'
TOOL: Any = {"name": "read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}


@pytest.fixture
def connect() -> Iterator[Connect]:
    """The SDK as a client of a server; it does not try again unless told to."""
    with contextlib.ExitStack() as stack:

        def open_client(server: LiveServer, *, key: str = "k", retries: int = 0) -> anthropic.Anthropic:
            client = anthropic.Anthropic(
                base_url=f"http://127.0.0.1:{server.port}", api_key=key, max_retries=retries
            )
            return stack.enter_context(client)

        yield open_client


def test_tools_over_three_turns(serve: Serve, connect: Connect) -> None:
    """Streamed, with thinking that goes back as it came; the SDK's own fold is the message."""
    server = serve(
        Recording(pieces=("Look.</think>", CALL), match="first"),
        Recording(pieces=("Again.</think>", CALL), match="again"),
        Recording(pieces=("Enough.</think>\n\n", "It says ", "hello."), match="third"),
    )
    client = connect(server)
    messages: list[Any] = []
    for word, kinds in (("first", "tool_use"), ("again", "tool_use"), ("third", "text")):
        last = messages[-1]["content"][-1] if messages else None
        result = {"type": "tool_result", "tool_use_id": last.id, "content": "hello"} if last else None
        messages.append(
            {"role": "user", "content": [*filter(None, [result]), {"type": "text", "text": word}]}
        )
        with client.messages.stream(model="m", max_tokens=500, messages=messages, tools=[TOOL]) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        assert [block.type for block in message.content] == ["thinking", kinds]
        messages.append({"role": "assistant", "content": message.content})
    assert (text, message.stop_reason) == ("It says hello.", "end_turn")
    counted = client.messages.count_tokens(model="m", messages=messages[:-1], tools=[TOOL])
    used = message.usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)
    assert [card.id for card in client.models.list()] == ["maple-preview"]


def test_errors_are_the_sdks_own(serve: Serve, connect: Connect) -> None:
    """Each status is its typed exception, and the request's id is known."""
    server = serve(api_key="k", strict_model=True)
    sent: Any = {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(anthropic.AuthenticationError):
        connect(server, key="no").messages.create(model="maple-preview", **sent)
    with pytest.raises(anthropic.NotFoundError):
        connect(server).messages.create(model="other", **sent)
    with pytest.raises(anthropic.BadRequestError, match="max_tokens must be at least 1") as caught:
        connect(server).messages.create(model="maple-preview", **{**sent, "max_tokens": 0})
    assert caught.value.request_id


def test_an_overload_is_tried_again(serve: Serve, connect: Connect) -> None:
    """529 until the model is there; without retries it is raised as what it is."""
    server = serve(loaded=False)
    sent: Any = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(anthropic.APIStatusError) as caught:
        connect(server).messages.create(**sent)
    assert caught.value.status_code == 529
    with pytest.raises(anthropic.APIStatusError):
        connect(server, retries=1).messages.create(**sent)
    server.settle()
    assert server.metric('maple_requests_total{route="/v1/messages",status="529"}') == 3.0


def test_a_stream_that_breaks_is_raised(serve: Serve, connect: Connect) -> None:
    """The error event behind the status line."""
    server = serve(Recording(pieces=("</think>", "a"), finish="error"))
    messages: Any = [{"role": "user", "content": "hi"}]
    with (
        pytest.raises(anthropic.APIStatusError, match="generation failed"),
        connect(server).messages.stream(model="m", max_tokens=9, messages=messages) as stream,
    ):
        stream.get_final_message()
