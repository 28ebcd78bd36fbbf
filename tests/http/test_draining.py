"""Shutting down: what runs may finish, newcomers are refused, probes are answered until the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import Serve

SLOW = Recording(pieces=("</think>", *"abcdefgh"), delay_ms=30)


@pytest.mark.parametrize("stream", [True, False])
def test_a_drain_lets_what_runs_finish(serve: Serve, stream: bool) -> None:
    """The answer is complete, and only then does the listener close."""
    server = serve(SLOW)
    with server.send(server.request_bytes("/v1/chat/completions", server.chat_body(stream=stream))) as raw:
        server.until(lambda: server.engine.stats().running == 1)
        drained = server.spawn(server.running.drain(20))
        server.until(lambda: server.engine.draining)
        assert server.get("/readyz").json["status"] == "draining"
        assert server.get("/healthz").status == 200
        assert server.chat().error["code"] == "shutting_down"
        text = server.read_until(raw, b"[DONE]" if stream else b'"usage"')
        assert b'"stop"' in text
    assert drained.result(20) is True
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_a_drain_ends_after_its_time(serve: Serve) -> None:
    """What is not done by then is cancelled: a stream is told so in band and ended."""
    server = serve(Recording(pieces=tuple("abcdefghij" * 1000), delay_ms=20))
    with server.open_stream() as raw:
        server.read_until(raw, b"data:")
        drained = server.spawn(server.running.drain(0.1))
        rest = server.read_until(raw, b"[DONE]")
    assert b'"code":"shutting_down"' in rest
    assert drained.result(20) is False


def test_an_idle_server_drains_at_once(serve: Serve) -> None:
    """Kept connections do not hold it up."""
    server = serve(SLOW)
    connection = server.connection()
    assert server.ask(connection, "GET", "/healthz").status == 200
    assert server.wait(server.running.drain(20)) is True
    connection.close()


def test_waiting_jobs_finish_in_a_drain_too(serve: Serve) -> None:
    """They were accepted before."""
    server = serve(SLOW)
    with server.open_stream() as first, server.open_stream() as second:
        server.until(lambda: server.engine.stats().waiting == 1)
        drained = server.spawn(server.running.drain(20))
        for raw in (first, second):
            assert b'"stop"' in server.read_until(raw, b"[DONE]")
    assert drained.result(20) is True


def test_closing_ends_every_connection(serve: Serve) -> None:
    """Whatever is under way; the jobs are cancelled."""
    server = serve(Recording(pieces=tuple("abcdefghij" * 1000), delay_ms=20))
    with server.open_stream() as raw:
        server.read_until(raw, b"data:")
        server.wait(server.running.close())
        server.read_to_end(raw)
    server.until_idle()
    assert server.engine.stats().cancelled == 1
