"""Server-sent events: headers, order, pings, when the status line goes out, and failures in band."""

from __future__ import annotations

import contextlib
import pathlib
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
from maple_protocols.adapter import Encoder, Frame, Identity, OfChoice, TurnEvent
from maple_protocols.ask import Ask
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.chat_out import ChatEncoder
from maple_testing.guard import HANG_GUARD

from maple.engine.admission import QueueLimits
from maple.http.services import Limits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

FOREVER = Recording(match="forever", pieces=tuple("abcdefghij" * 100), delay_ms=20)
HELLO = Recording(pieces=("Thinking.", "</think>", "\n\nHello", " world", "!"))
BROKEN = Recording(match="break", pieces=("</think>", "He"), finish="error")
QUICK = Limits(ping_seconds=0.1)


@contextlib.contextmanager
def occupied(server: LiveServer) -> Iterator[socket.socket]:
    """Someone else's endless stream holds the only slot."""
    with server.open_stream("forever") as raw:
        server.read_until(raw, b"data:")
        yield raw


def test_a_stream_has_the_headers_that_keep_proxies_from_holding_it(server: LiveServer) -> None:
    """No cache, no buffering, and its own type."""
    headers = server.chat(stream=True).headers
    assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert headers["Cache-Control"] == "no-cache"
    assert headers["X-Accel-Buffering"] == "no"


def test_the_order_of_a_chat_stream(server: LiveServer) -> None:
    """Role, reasoning, content, finish, usage, [DONE]; one id and created throughout."""
    events = server.chat(stream=True, stream_options={"include_usage": True}).events
    assert events[-1] == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in events[:-2]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    kinds = [next(iter(delta)) for delta in deltas[1:-1]]
    assert kinds == sorted(kinds, reverse=True)
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello world!"
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Thinking."
    assert deltas[-1] == {}
    assert events[-3]["choices"][0]["finish_reason"] == "stop"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 5
    assert len({(event["id"], event["created"]) for event in events[:-1]}) == 1


def test_events_are_separated_by_one_blank_line_and_nothing_else(server: LiveServer) -> None:
    """The bytes are what every SSE reader expects."""
    text = server.chat(stream=True).body.decode()
    assert text.endswith("data: [DONE]\n\n")
    assert all(block.startswith("data: ") for block in text.removesuffix("\n\n").split("\n\n"))
    assert "\r" not in text


def test_the_stream_folds_to_the_whole_answer(server: LiveServer) -> None:
    """For a plain answer here; for every recorded output, cut everywhere, in test_outputs_over_http."""
    message = server.chat().json["choices"][0]["message"]
    deltas = [event["choices"][0]["delta"] for event in server.chat(stream=True).events[:-1]]
    assert message["content"] == "".join(delta.get("content", "") for delta in deltas)
    assert message["reasoning_content"] == "".join(delta.get("reasoning_content", "") for delta in deltas)


def test_a_piece_goes_out_as_soon_as_it_is_there(serve: Serve) -> None:
    """The first words arrive while the rest is an hour away."""
    server = serve(Recording(pieces=("</think>", "first", "second"), delay_ms=50))
    with server.open_stream() as raw:
        seen = server.read_until(raw, b"first")
        assert b"second" not in seen


def test_completions_stream_too(serve: Serve) -> None:
    """One writer for all protocols."""
    answer = serve(Recording(pieces=("a", "b"))).post("/v1/completions", {"prompt": "x", "stream": True})
    assert "".join(event["choices"][0]["text"] for event in answer.events[:-1]) == "ab"
    assert answer.events[-1] == "[DONE]"


def test_http_1_0_gets_an_unchunked_stream_that_ends_with_the_connection(server: LiveServer) -> None:
    """There is no other way to tell such a client where it ends, whatever it asked for."""
    request = server.request_bytes(
        "/v1/chat/completions", server.chat_body(stream=True), Connection="keep-alive"
    )
    with server.send(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1)) as raw:
        answer = server.read_to_end(raw)
    assert b"Transfer-Encoding" not in answer
    assert answer.endswith(b"data: [DONE]\n\n")


def test_the_status_line_waits_for_the_slot(serve: Serve) -> None:
    """While the job queues, for a while not a byte is sent: a refusal could still be a true status."""
    server = serve(FOREVER, HELLO, queue=QueueLimits(slots=1, depth=1))
    with occupied(server) as first, server.open_stream("hi") as second:
        server.until(lambda: server.engine.stats().waiting == 1)
        second.settimeout(0.2)
        with pytest.raises(TimeoutError):
            second.recv(1)
        first.close()
        second.settimeout(HANG_GUARD)
        assert b"[DONE]" in server.read_until(second, b"[DONE]")


def test_a_completions_stream_sends_its_status_line_with_its_slot(serve: Serve) -> None:
    """As chat's does, though it opens with no event: the client hears of it long before the first text."""
    server = serve(Recording(match="late", pieces=("at last",), delay_ms=3_600_000))
    request = server.request_bytes("/v1/completions", {"model": "m", "prompt": "late", "stream": True})
    with server.send(request) as raw:
        assert server.read_until(raw, b"\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_the_status_line_goes_out_after_a_long_wait_and_pings_follow(serve: Serve) -> None:
    """Then the queue is told by comments, and the stream is whole once the slot is there."""
    server = serve(FOREVER, HELLO, queue=QueueLimits(slots=1, depth=1), limits=QUICK)
    with occupied(server) as first, server.open_stream("hi") as second:
        seen = server.read_until(second, b": ping\n\n")
        assert seen.startswith(b"HTTP/1.1 200 OK\r\n")
        first.close()
        assert b"Hello" in server.read_until(second, b"[DONE]")


def test_a_refusal_after_the_status_line_is_told_in_band(serve: Serve) -> None:
    """A queue timeout after a long wait: one error event, then [DONE], and no finish chunk."""
    queue = QueueLimits(slots=1, depth=1, timeout=0.3)
    server = serve(FOREVER, HELLO, queue=queue, limits=QUICK)
    with occupied(server):
        answer = server.chat(stream=True)
    assert answer.status == 200
    assert answer.events[-2]["error"]["code"] == "engine_overloaded"
    assert answer.events[-1] == "[DONE]"
    assert not any(event["choices"][0]["finish_reason"] for event in answer.events[:-2])


def test_silence_is_broken_by_comments_in_decode_too(serve: Serve) -> None:
    """Every ping_seconds without a byte, and no reader takes them for events."""
    server = serve(Recording(pieces=("</think>", "a", "b"), delay_ms=250), limits=QUICK)
    answer = server.chat(stream=True)
    assert answer.body.count(b": ping\n\n") >= 3
    assert [e["choices"][0]["delta"].get("content") for e in answer.events[1:-2]] == ["a", "b"]


def test_a_stream_that_is_not_silent_gets_no_comments(serve: Serve) -> None:
    """Pieces come more often than pings would."""
    server = serve(
        Recording(pieces=("</think>", *"abcdefghijklmno"), delay_ms=100), limits=Limits(ping_seconds=1)
    )
    assert b": ping" not in server.chat(stream=True).body


def test_a_failure_after_the_status_line_is_one_error_event_then_done(serve: Serve, log_lines) -> None:
    """What had been sent stays, no finish chunk pretends that all is well, and the log says so."""
    server = serve(BROKEN, HELLO)
    events = server.chat("break", stream=True).events
    assert events[-2] == {
        "error": {"message": "generation failed", "type": "server_error", "param": None, "code": None}
    }
    assert events[-1] == "[DONE]"
    assert not any(event["choices"][0]["finish_reason"] for event in events[:-2])
    server.settle()
    failed = next(line for line in log_lines() if line["event"] == "http.stream_failed")
    assert (failed["reason"], bool(failed["request_id"])) == ("GenerationFailed", True)


def test_a_slow_reader_gets_everything_and_keeps_the_rest_waiting(serve: Serve) -> None:
    """Backpressure: what the client does not take is not piled up in the writer."""
    server = serve(Recording(pieces=("</think>", *("x" * 10_000 for _ in range(2000)))))
    with server.open_stream() as raw:
        server.read_until(raw, b"data:")
        server.until_idle()
        held = server.call(lambda: _largest_write_buffer(server))
        assert held < 256 * 1024
        answer = server.read_until(raw, b"[DONE]")
    assert answer.count(b"x" * 10_000) > 1950


def _largest_write_buffer(server: LiveServer) -> int:
    return max(each.held_bytes for each in server.running.connections)


def test_the_first_byte_of_a_stream_waits_for_no_token(serve: Serve) -> None:
    """The status line tells a client that its turn has come, however long the prompt takes."""
    server = serve(Recording(pieces=("</think>", "a"), delay_ms=2000 * HANG_GUARD))
    with server.open_stream() as raw:
        assert raw.recv(1) == b"H"


BROKEN_PARSER = """
from maple_plugins.parsers.none import NoTools

class Forgetful(NoTools):
    def feed(self, text):
        raise KeyError(text)
"""


@pytest.mark.parametrize("stream", [True, False])
def test_a_parser_that_raises_is_named_in_the_log(
    serve: Serve, log_lines, tmp_path: pathlib.Path, stream: bool
) -> None:
    """By one line that says where it raised and holds none of the text; the client is told nothing of it."""
    (tmp_path / "parser.py").write_text(BROKEN_PARSER)
    server = serve(tool_parser=f"{tmp_path}/parser.py:Forgetful")
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = server.post("/v1/chat/completions", server.chat_body(stream=stream, tools=tools))
    error = answer.events[-2]["error"] if stream else answer.error
    assert error == {"message": "internal error", "type": "server_error", "param": None, "code": None}
    server.until_idle()
    server.settle()
    (line,) = [line for line in log_lines() if line["level"] == "error"]
    assert (line["event"], line["parser"].rpartition(":")[2]) == ("parser.failed", "Forgetful")
    assert "in feed" in line["exception"]
    assert "KeyError" in line["exception"]
    assert "Hello" not in line["exception"]


class BrokenEncoder(ChatEncoder):
    """An encoder by someone who forgot a case."""

    def event(self, event: TurnEvent | OfChoice) -> Sequence[Frame]:
        raise KeyError(event)


class BrokenProtocol(ChatAdapter):
    path = "/v1/broken"

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        return BrokenEncoder(ask, identity)


def test_an_unforeseen_failure_in_a_stream_tells_nothing_and_ends_it(serve: Serve, log_lines) -> None:
    """In band, in our shape; where it happened is in the log; the slot is free."""
    server = serve(adapters=(BrokenProtocol(),))
    events = server.post("/v1/broken", server.chat_body(stream=True)).events
    assert events[-2:] == [
        {"error": {"message": "internal error", "type": "server_error", "param": None, "code": None}},
        "[DONE]",
    ]
    server.settle()
    server.until_idle()
    assert [line["route"] for line in log_lines() if line["event"] == "http.crash"] == ["/v1/broken"]
