"""POST /v1/chat/completions/ID/answer: who waits for an answer ends the thinking before it."""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    import pathlib

    from tests.http.conftest import LiveServer, Serve

THINKS = Recording(
    pieces=("Hm. ", *("thought " for _ in range(900)), "</thi", "nk>\n\n", "Yes."), delay_ms=40
)
SAYS = Recording(pieces=("</think>\n\n", *("word " for _ in range(900))), delay_ms=40)
CONTROL = "/v1/chat/completions/{}/answer"


def answer_id(seen: bytes) -> str:
    found = re.search(rb'"id":"(chatcmpl-\w+)"', seen)
    assert found
    return found[1].decode()


def begun(server: LiveServer, raw: socket.socket, word: bytes) -> str:
    """The id of a stream that has come as far as a word."""
    return answer_id(server.read_until(raw, word))


def content(seen: bytes) -> str:
    events = [json.loads(line[6:]) for line in seen.split(b"\n") if line.startswith(b"data: {")]
    return "".join(one["choices"][0]["delta"].get("content") or "" for one in events)


@pytest.mark.parametrize("level", ["reference", "extended"])
def test_thinking_ends_and_the_stream_goes_on(serve: Serve, level: str) -> None:
    """Once is enough, and a second word does no harm. The recording's nine hundred thoughts would take a minute."""
    server = serve(THINKS, api_level=level)
    with server.open_stream() as raw:
        name = begun(server, raw, b"thought")
        told = server.post(CONTROL.format(name), {})
        assert (told.status, told.json) == (
            200,
            {"id": name, "object": "chat.completion.control", "answered": True},
        )
        rest = server.read_until(raw, b"[DONE]")
    assert content(rest) == "Yes."
    assert rest.count(b"thought") < 100


def test_an_answer_that_does_not_think_is_a_conflict(serve: Serve) -> None:
    """It is past its thoughts, or never had any; SDKs are told not to try again."""
    server = serve(SAYS)
    for thinking in (True, False):
        with server.open_stream(enable_thinking=thinking) as raw:
            told = server.post(CONTROL.format(begun(server, raw, b"word")), {})
        assert (told.status, told.error["code"]) == (409, "not_thinking")
        assert told.headers["x-should-retry"] == "false"


def test_what_is_not_being_made_is_unknown(serve: Serve, tmp_path: pathlib.Path) -> None:
    """An id that never was, one that has ended, and another key's: nobody learns which."""
    keys = tmp_path / "keys"
    keys.write_text("ann:key-of-ann-1234567890\nbob:key-of-bob-1234567890\n")
    keys.chmod(0o600)
    server = serve(THINKS, Recording(pieces=("a",)), api_key_file=keys)
    ann, bob = ({"Authorization": f"Bearer key-of-{name}-1234567890"} for name in ("ann", "bob"))
    with server.connect() as raw:
        body = server.chat_body(stream=True)
        raw.sendall(server.request_bytes("/v1/chat/completions", body, **ann))
        name = begun(server, raw, b"thought")
        told = server.post(CONTROL.format(name), {}, headers=bob)
        assert (told.status, told.error["code"]) == (404, "not_found")
        assert server.post(CONTROL.format(name), {}).status == 401
        assert server.post(CONTROL.format(name), {}, headers=ann).status == 200
        server.read_until(raw, b"[DONE]")
    server.until_idle()
    assert server.post(CONTROL.format(name), {}, headers=ann).status == 404
    assert server.post(CONTROL.format("chatcmpl-0"), {}, headers=ann).status == 404


def test_a_body_is_not_needed_and_must_be_json(serve: Serve) -> None:
    """As on the other routes that need none."""
    server = serve(THINKS)
    with server.open_stream() as raw:
        name = begun(server, raw, b"thought")
        assert server.request("POST", CONTROL.format(name), b"{").error["code"] == "invalid_json"
        assert server.request("POST", CONTROL.format(name), b"").status == 200
        server.read_until(raw, b"[DONE]")
