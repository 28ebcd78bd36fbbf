"""The contract's order of checks: of two mistakes, the earlier one in the list is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maple.engine.admission import QueueLimits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

CHAT = "/v1/chat/completions"
BUSY = Recording(match="busy", pieces=tuple("abcdefghij" * 100), delay_ms=20)
LONG = "word " * 2000

# Each step: its name, its code, and how to make exactly that mistake.
STEPS = (
    "path",
    "method",
    "host",
    "key",
    "loading",
    "type",
    "size",
    "json",
    "fields",
    "model",
    "length",
    "queue",
)
CODES = {
    "path": "route_not_found",
    "method": "method_not_allowed",
    "host": "host_not_allowed",
    "key": "invalid_api_key",
    "loading": "model_loading",
    "type": "unsupported_media_type",
    "size": "payload_too_large",
    "json": "invalid_json",
    "fields": None,
    "model": "model_not_found",
    "length": "context_length_exceeded",
    "queue": "engine_overloaded",
}
PAIRS = [
    (first, second)
    for index, first in enumerate(STEPS)
    for second in STEPS[index + 1 :]
    if (first, second) != ("host", "key")  # with a key, the host is not looked at
]


def make(serve: Serve, mistakes: set[str]) -> LiveServer:
    settings: dict[str, object] = {"max_prompt_tokens": 60, "strict_model": True}
    if "key" in mistakes:
        settings["api_key"] = "secret"
    queue = QueueLimits(slots=1, depth=0) if "queue" in mistakes else QueueLimits()
    server = serve(BUSY, Recording(pieces=("x",)), loaded="loading" not in mistakes, queue=queue, **settings)
    if "queue" in mistakes and "loading" not in mistakes:
        body = server.chat_body("busy", stream=True)
        raw = server.send(server.request_bytes(CHAT, body, Authorization="Bearer secret"))
        server.hold(raw)
        server.read_until(raw, b"data:")
    return server


def send(server: LiveServer, mistakes: set[str]):
    fields = {"n": 2} if "fields" in mistakes else {}
    model = {"model": "other"} if "model" in mistakes else {}
    body: object = server.chat_body(LONG if "length" in mistakes else "hi", **fields, **model)
    if "json" in mistakes:
        body = b"{nope"
    headers = {"Content-Type": "text/plain" if "type" in mistakes else "application/json"}
    if "host" in mistakes:
        headers["Host"] = "evil.example"
    if "size" in mistakes:
        headers["Content-Length"] = str(10**9)
    path = "/v1/nowhere" if "path" in mistakes else CHAT
    method = "PUT" if "method" in mistakes else "POST"
    return server.request(method, path, body, headers)


@pytest.mark.parametrize("step", STEPS)
def test_each_mistake_alone_is_told(serve: Serve, step: str) -> None:
    """So that the pairs below mean something."""
    answer = send(make(serve, {step}), {step})
    assert answer.status >= 400
    assert answer.error["code"] == CODES[step]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda step: step)
def test_of_two_mistakes_the_earlier_is_told(serve: Serve, first: str, second: str) -> None:
    """For every pair in the list."""
    mistakes = {first, second}
    answer = send(make(serve, mistakes), mistakes)
    assert answer.status >= 400
    assert answer.error["code"] == CODES[first]


@pytest.mark.parametrize("path", ["/v1/sessions/.hidden/save", "/v1/sessions/a%20b/save"])
def test_a_session_id_is_looked_at_before_the_setting_and_the_body(serve: Serve, path: str) -> None:
    """Id, then 501, then loading, then the body."""
    server = serve(loaded=False)
    headers = {"Content-Type": "text/plain"}
    assert server.request("POST", path, b"x", headers).error["param"] == "session_id"
    assert server.request("POST", "/v1/sessions/good/save", b"x", headers).error["code"] == "not_configured"
