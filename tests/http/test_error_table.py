"""The contract's error table, row by row, over HTTP."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
from maple_protocols.adapter import Policy
from maple_protocols.ask import Ask
from maple_protocols.openai.chat import ChatAdapter

from maple.engine.admission import QueueLimits
from maple.http.services import Limits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import Answer, LiveServer, Serve

INVALID = "invalid_request_error"
CHAT = "/v1/chat/completions"
SLOW = Recording(pieces=tuple("abcdefghij" * 100), delay_ms=20)


def facts(answer: Answer) -> tuple[int, str, str | None, str | None]:
    """Status, type, param and code."""
    error = answer.error
    return answer.status, error["type"], error["param"], error["code"]


def test_400_a_wrong_field_has_its_path_and_no_code(server: LiveServer) -> None:
    """Chat and completions speak as the reference does."""
    assert facts(server.chat(n=2)) == (400, INVALID, "n", None)
    wrong = {"messages": [{"role": "user", "content": ["x"]}]}
    assert facts(server.post(CHAT, wrong)) == (400, INVALID, "messages[0].content[0]", None)
    assert facts(server.post("/v1/completions", {"prompt": " "})) == (400, INVALID, "prompt", None)


def test_400_an_unknown_field_is_an_invalid_parameter_where_fields_are_strict(serve: Serve) -> None:
    """MAPLE_STRICT_FIELDS=true refuses what the default ignores."""
    assert facts(serve(strict_fields="true").chat(frobnicate=1)) == (
        400,
        INVALID,
        "frobnicate",
        "invalid_parameter",
    )
    assert serve().chat(frobnicate=1).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{nope",
        b"[]",
        b'"text"',
        b"null",
        b"\xef\xbb\xbf{}",
        '{"messages": []}'.encode("utf-16"),
        b'{"user": "\xff"}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": ' + b"1" * 4001 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}",
        b'{"a": ' + b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_400_invalid_json(server: LiveServer, path: str, body: bytes) -> None:
    """Anything that is not one plain JSON object of sane depth and numbers."""
    assert facts(server.post(path, body)) == (400, INVALID, None, "invalid_json")


def test_400_corrupt_gzip_is_invalid_json(server: LiveServer) -> None:
    """The bytes do not inflate."""
    answer = server.post(CHAT, b"no gzip", {"Content-Encoding": "gzip", "Content-Type": "application/json"})
    assert facts(answer) == (400, INVALID, None, "invalid_json")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "word " * 2000}]}, "messages"),
        ("/v1/completions", {"prompt": "word " * 2000}, "prompt"),
        ("/v1/completions", {"prompt": [5] * 2000}, "prompt"),
    ],
)
def test_400_context_length_exceeded_names_both_counts(
    serve: Serve, path: str, body: object, param: str
) -> None:
    """The prompt is longer than MAPLE_MAX_PROMPT_TOKENS."""
    answer = serve(max_prompt_tokens=50).post(path, body)
    assert facts(answer) == (400, INVALID, param, "context_length_exceeded")
    counts = [int(word.strip(";")) for word in answer.error["message"].split() if word.strip(";").isdigit()]
    assert counts[1] == 50
    assert counts[0] > 50


@pytest.mark.parametrize("header", ["", "Bearer nope", "Basic secret", "secret", "Bearer", "Bearer secret x"])
def test_401_a_missing_or_wrong_key(serve: Serve, header: str) -> None:
    """The challenge names the realm."""
    answer = serve(api_key="secret").request("GET", "/v1/models", headers={"Authorization": header})
    assert facts(answer) == (401, "authentication_error", None, "invalid_api_key")
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="maple"'


def test_403_a_host_that_is_not_ours(server: LiveServer) -> None:
    """A rebound name is refused while no key protects the server."""
    answer = server.get("/v1/models", Host="evil.example")
    assert facts(answer) == (403, INVALID, None, "host_not_allowed")


def test_404_another_model_where_the_server_is_strict(serve: Serve) -> None:
    """MAPLE_STRICT_MODEL=true."""
    answer = serve(strict_model=True).chat(model="gpt-4o")
    assert facts(answer) == (404, INVALID, "model", "model_not_found")
    assert serve(strict_model=True).chat(model="org/Maple-Preview").status == 200
    assert serve().chat(model="gpt-4o").json["model"] == "gpt-4o"


def test_404_an_unknown_path(server: LiveServer) -> None:
    """Whatever the method."""
    assert facts(server.post("/v1/nope", {})) == (404, INVALID, None, "route_not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/sessions/abc/save"),
        ("POST", "/v1/sessions/abc/load"),
        ("GET", "/v1/sessions/abc/manifest"),
        ("DELETE", "/v1/sessions/abc"),
    ],
)
def test_404_no_such_session_and_501_without_a_place_for_them(
    serve: Serve, tmp_path, method: str, path: str
) -> None:
    """With MAPLE_SESSION_DIR the session is not there; without it the route is off."""
    there = serve(session_dir=tmp_path).request(method, path)
    assert facts(there) == (404, INVALID, None, "not_found")
    assert facts(serve().request(method, path)) == (501, "server_error", None, "not_configured")


def test_405_names_what_the_route_answers(server: LiveServer) -> None:
    """With the exact Allow (every route's: test_every_response)."""
    answer = server.get(CHAT)
    assert facts(answer) == (405, INVALID, None, "method_not_allowed")
    assert answer.headers["Allow"] == "POST"


def test_408_a_body_that_does_not_arrive(serve: Serve) -> None:
    """MAPLE_BODY_TIMEOUT."""
    server = serve(body_timeout=0.1)
    whole = server.request_bytes(CHAT, server.chat_body())
    with server.send(whole[:-5]) as raw:
        assert facts(server.read_answer(raw)) == (408, INVALID, None, "request_timeout")


def test_413_a_body_over_the_cap(serve: Serve) -> None:
    """As declared, as sent in chunks and as inflated."""
    server = serve(limits=Limits(body_bytes=1000))
    large = b'{"messages": "' + b"x" * 1000 + b'"}'
    expected = (413, INVALID, None, "payload_too_large")
    assert facts(server.post(CHAT, large)) == expected
    chunked = server.request_bytes(CHAT, b"", Content_Length="", Transfer_Encoding="chunked")
    with server.send(chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(large), large)) as raw:
        assert facts(server.read_answer(raw)) == expected
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    assert facts(server.post(CHAT, gzip.compress(large), headers)) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": ""},
        {"Content-Type": "application/jsonp"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/json", "Content-Encoding": "br"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip, gzip"},
    ],
)
def test_415_a_body_that_is_not_json(server: LiveServer, headers: dict[str, str]) -> None:
    """Another Content-Type, none at all, or an encoding that is not read."""
    answer = server.post(CHAT, server.chat_body(), headers)
    assert facts(answer) == (415, INVALID, None, "unsupported_media_type")


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=y"]
)
def test_parameters_of_the_media_type_are_fine(server: LiveServer, media_type: str) -> None:
    """And so is its case."""
    assert server.post(CHAT, server.chat_body(), {"Content-Type": media_type}).status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_500_the_model_broke(serve: Serve, log_lines, stream: bool) -> None:
    """The client learns nothing but that; a stream that had begun says it in band."""
    answer = serve(Recording(pieces=("</think>", "He"), finish="error")).chat(stream=stream)
    if stream:
        assert answer.status == 200
        assert answer.events[-2:] == [
            {"error": {"message": "generation failed", "type": "server_error", "param": None, "code": None}},
            "[DONE]",
        ]
    else:
        assert facts(answer) == (500, "server_error", None, None)
        assert answer.error["message"] == "generation failed"


@pytest.mark.parametrize("stream", [True, False])
def test_500_before_the_slot_is_a_true_status(serve: Serve, stream: bool) -> None:
    """The scripted engine has no answer: the job never gets its slot, so the status line is still free."""
    answer = serve(Recording(match="weather", pieces=("x",))).chat("hi", stream=stream)
    assert facts(answer) == (500, "server_error", None, None)


def test_503_while_the_model_loads(serve: Serve) -> None:
    """With Retry-After; the listing is answered meanwhile."""
    server = serve(loaded=False)
    answer = server.chat()
    assert facts(answer) == (503, "server_error", None, "model_loading")
    assert int(answer.headers["Retry-After"]) > 0
    assert server.get("/v1/models").status == 200


def test_503_once_the_load_has_failed(serve: Serve) -> None:
    """Without Retry-After: waiting will not help. The reason is not for clients."""
    server = serve(loaded=False)
    server.call(lambda: server.services.turns.fail("tokenizer.json in /home/me: broken"))
    answer = server.chat()
    assert facts(answer) == (503, "server_error", None, "model_failed")
    assert "Retry-After" not in answer.headers
    assert "/home" not in answer.body.decode()


@pytest.mark.parametrize("stream", [True, False])
def test_503_the_queue_is_full(serve: Serve, stream: bool) -> None:
    """At once, with Retry-After: 5."""
    server = serve(SLOW, queue=QueueLimits(slots=1, depth=0))
    with server.open_stream() as raw:
        server.read_until(raw, b"data:")
        answer = server.chat(stream=stream)
    assert facts(answer) == (503, "server_error", None, "engine_overloaded")
    assert answer.headers["Retry-After"] == "5"


@pytest.mark.parametrize("stream", [True, False])
def test_503_the_queue_took_too_long(serve: Serve, stream: bool) -> None:
    """MAPLE_QUEUE_TIMEOUT ends the wait with the same refusal."""
    server = serve(SLOW, queue=QueueLimits(slots=1, depth=1, timeout=0.1))
    with server.open_stream() as raw:
        server.read_until(raw, b"data:")
        answer = server.chat(stream=stream)
    assert facts(answer) == (503, "server_error", None, "engine_overloaded")
    assert answer.headers["Retry-After"] == "5"


def test_503_while_shutting_down(serve: Serve) -> None:
    """Retry-After: 5, and the connection is closed; a running stream goes on."""
    server = serve(Recording(pieces=tuple("abcdefghij"), delay_ms=20))
    with server.open_stream() as raw:
        server.read_until(raw, b"data:")
        server.spawn(server.running.drain(10))
        server.until(lambda: server.engine.draining)
        with server.send(server.request_bytes(CHAT, server.chat_body())) as late:
            answer = server.read_answer(late)
            assert server.read_to_end(late) == b""
        assert facts(answer) == (503, "server_error", None, "shutting_down")
        assert (answer.headers["Retry-After"], answer.headers["Connection"]) == ("5", "close")
        assert b"[DONE]" in server.read_until(raw, b"[DONE]")


class BrokenAdapter(ChatAdapter):
    """A protocol by someone who forgot a case."""

    path = "/v1/broken"

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        raise KeyError(body["messages"])


def test_an_exception_that_nobody_foresaw_is_a_500_that_tells_nothing(serve: Serve, log_lines) -> None:
    """The traceback is in the log, with the request's id, and nowhere else."""
    server = serve(adapters=(BrokenAdapter(),))
    answer = server.post("/v1/broken", server.chat_body(), {"X-Request-Id": "mine"})
    assert facts(answer) == (500, "server_error", None, None)
    assert answer.error["message"] == "internal error"
    server.settle()
    crash = next(line for line in log_lines() if line["event"] == "http.crash")
    assert crash["request_id"] == "mine"
    assert crash["exception"].endswith("KeyError")
    assert "hi" not in crash["exception"].split()  # an error's own words may quote the prompt
