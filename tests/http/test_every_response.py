"""The contract's section "Every response", line by line."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

GET_ROUTES = (
    "/health",
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/stats",
    "/v1/models",
    "/v1/models/maple-preview",
    "/v1/models/org/maple-preview",
    "/ui/app.js",
)
ALLOWED = {
    **dict.fromkeys((*GET_ROUTES, "/", "/ui"), "GET, HEAD"),
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/sessions/abc/save": "POST",
    "/v1/sessions/abc/load": "POST",
    "/v1/sessions/abc/manifest": "GET, HEAD",
    "/v1/sessions/abc": "DELETE",
}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WRONG = [
    (path, allow, method)
    for path, allow in ALLOWED.items()
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW")
    if method not in allow.split(", ")
]


def test_json_is_json_and_says_utf_8(server: LiveServer) -> None:
    """Answers, listings, probes and errors are application/json; charset=utf-8."""
    answers = [server.chat(), server.get("/v1/models"), server.get("/health"), server.get("/nowhere")]
    assert {answer.headers["Content-Type"] for answer in answers} == {"application/json; charset=utf-8"}


def test_what_is_not_json_has_its_own_type(server: LiveServer) -> None:
    """Streams, metrics and text stats are named for what they are."""
    assert server.chat(stream=True).headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert server.get("/metrics").headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert server.get("/v1/stats").headers["Content-Type"] == "text/plain; charset=utf-8"


def test_non_ascii_text_is_utf_8(serve: Serve) -> None:
    """Text goes out as UTF-8, not as escapes."""
    server = serve(Recording(pieces=("</think>", "árbol 🍁")))
    assert "árbol 🍁".encode() in server.chat().body


@pytest.mark.parametrize("line_end", ["\u0085", "\u2028", "\u2029"])
def test_line_ends_that_json_lets_stand_are_escaped(serve: Serve, line_end: str) -> None:
    """A client that splits a stream at Unicode's line ends still gets whole events."""
    answer = serve(Recording(pieces=("</think>", f"a{line_end}b"))).chat(stream=True)
    assert line_end not in answer.body.decode()
    assert answer.events[1]["choices"][0]["delta"]["content"] == f"a{line_end}b"


@pytest.mark.parametrize("offered", ["abc-123", "!", "~" * 128])
def test_a_good_request_id_is_kept(server: LiveServer, offered: str) -> None:
    """1 to 128 visible ASCII characters come back as they are."""
    assert server.get("/healthz", X_Request_Id=offered).headers["X-Request-Id"] == offered


@pytest.mark.parametrize("offered", ["", "two words", "a" * 129, "caf\xe9", "tab\there"])
def test_any_other_request_id_is_replaced_by_a_uuid4(server: LiveServer, offered: str) -> None:
    """What could not stand in a log line or header is replaced, not repaired."""
    given = server.get("/healthz", X_Request_Id=offered).headers["X-Request-Id"]
    assert uuid.UUID(given).version == 4


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("POST", "/v1/chat/completions", 200),
        ("GET", "/nowhere", 404),
        ("PUT", "/healthz", 405),
        ("BREW", "/healthz", 405),
        ("OPTIONS", "/healthz", 204),
    ],
)
def test_every_answer_carries_a_request_id(server: LiveServer, method: str, path: str, status: int) -> None:
    """Also refusals, preflights and methods that nobody has heard of."""
    body = server.chat_body() if method == "POST" else None
    answer = server.request(method, path, body, {"X-Request-Id": "mine"})
    assert (answer.status, answer.headers["X-Request-Id"]) == (status, "mine")


def test_every_log_line_of_a_request_carries_its_id(server: LiveServer, log_lines) -> None:
    """The access line and the engine's own lines name the same id."""
    server.post("/v1/chat/completions", server.chat_body(), {"X-Request-Id": "mine"})
    server.settle()
    lines = [line for line in log_lines() if line["event"] == "http.request"]
    assert [line["request_id"] for line in lines] == ["mine"]


def test_the_server_does_not_tell_what_it_is_built_on(server: LiveServer) -> None:
    """No framework, no version."""
    assert server.get("/healthz").headers["Server"] == "maple"
    assert "ornado" not in str(server.get("/nowhere").headers)


def test_errors_have_one_shape_with_four_keys(server: LiveServer) -> None:
    """``error`` checks the shape: nothing beside it, all four keys there even where they are null."""
    assert server.chat(n=2).error == {
        "message": "n must be 1",
        "type": "invalid_request_error",
        "param": "n",
        "code": None,
    }
    assert server.get("/nowhere").error["param"] is None


@pytest.mark.parametrize("length", [65, 5000])
def test_client_text_in_an_error_is_cut_at_64_characters(server: LiveServer, length: int) -> None:
    """A path is echoed, but never more than 64 characters of it."""
    message = server.get("/" + "x" * length).error["message"]
    assert "x" * 63 in message
    assert "x" * 64 not in message


@pytest.mark.parametrize(("path", "allow", "method"), WRONG)
def test_a_wrong_method_is_405_with_the_exact_allow(
    server: LiveServer, path: str, allow: str, method: str
) -> None:
    """Allow is "GET, HEAD", "POST" or "DELETE"; OPTIONS is answered and never listed."""
    answer = server.request(method, path)
    assert (answer.status, answer.error["code"], answer.headers["Allow"]) == (
        405,
        "method_not_allowed",
        allow,
    )


@pytest.mark.parametrize("path", GET_ROUTES)
def test_head_works_on_every_get_route(server: LiveServer, path: str) -> None:
    """Same status and headers as GET, and no body."""
    head, got = server.request("HEAD", path), server.request("GET", path)
    assert (head.status, head.body) == (got.status, b"")
    assert head.headers["Content-Type"] == got.headers["Content-Type"]
    if path not in ("/metrics", "/v1/stats"):  # their counts go on
        assert head.headers["Content-Length"] == got.headers["Content-Length"]


@pytest.mark.parametrize("path", [*GET_ROUTES, "/v1/chat/completions"])
def test_one_trailing_slash_is_ignored(server: LiveServer, path: str) -> None:
    """One, not two."""
    method, body = ("POST", server.chat_body()) if path.endswith("completions") else ("GET", None)
    assert server.request(method, path + "/", body).status == 200
    if "/models/" not in path:  # where a second slash is part of the id
        assert server.request(method, path + "//", body).status == 404


def test_a_trailing_slash_is_not_part_of_a_model_id(serve: Serve) -> None:
    """Strict, so that another id would be refused."""
    assert serve(strict_model=True).get("/v1/models/maple-preview/").status == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("deepgrove/maple-preview", 200),
        ("deepgrove%2Fmaple-preview", 200),
        ("Maple%2dPreview", 200),
        ("maple-preview%2F", 404),
        ("%ff", 404),
        ("maple%20preview", 404),
    ],
)
def test_model_ids_in_the_path_are_decoded(serve: Serve, path: str, status: int) -> None:
    """Slashes may stand as they are or encoded; strict, so that another id is refused."""
    answer = serve(strict_model=True).get(f"/v1/models/{path}")
    assert answer.status == status
    if status == 404:
        assert answer.error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/v1/models", "/v1/models"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/models", "/v1/models"),
        ("/api/v1/models", "/v1/models"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/health", "/health"),
        ("//v1/models", "/v1/models"),
        ("/heathz", "/healthz"),
    ],
)
def test_a_near_miss_names_the_right_route(server: LiveServer, path: str, right: str) -> None:
    """A wrong base URL is the commonest mistake: the refusal says what was meant."""
    error = server.get(path).error
    assert error["code"] == "route_not_found"
    assert error["message"].endswith(f"did you mean {right}?")


@pytest.mark.parametrize("path", ["/elsewhere", "/%ff%fe", "/v1", "/v1/sessions", "/" + "a/" * 2000])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "BREW"])
def test_an_unknown_path_is_404_for_every_method(server: LiveServer, method: str, path: str) -> None:
    """The path is looked at before the method."""
    answer = server.request(method, path)
    assert answer.status == 404
    if method != "HEAD":
        assert answer.error["code"] == "route_not_found"


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello?\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a, b\r\n\r\n",
        b"GET /healthz HTTP/9\r\nHost: a\r\n\r\n",
        POST + b"Content-Length: ten\r\n\r\n",
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_get_a_bare_400(server: LiveServer, garbage: bytes) -> None:
    """The one exception to our shape: nothing of a traceback or framework in it, and the server lives on."""
    with server.send(garbage) as raw:
        assert re.fullmatch(rb"(HTTP/1.1 400 Bad Request\r\n\r\n)?", server.read_to_end(raw))
    assert server.get("/healthz").status == 200
