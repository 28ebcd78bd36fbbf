"""Logging: JSON lines or console, libraries included, and nothing in it that could hurt."""

from __future__ import annotations

import io
import json
import logging
import warnings
from typing import TYPE_CHECKING

import pytest
import structlog

from maple.observe import logs
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import Serve

CHAT = "/v1/chat/completions"
SECRETS = ("wombat", "numbat", "quokka", "sk-secret")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_line_is_json_with_time_level_and_logger() -> None:
    """One object a line, whatever the values."""
    kept = io.StringIO()
    logs.configure(level="info", format="json", stream=kept)
    structlog.get_logger("maple.test").info("test.happened", number=3, text="two\nlines\x1b[31m")
    (line,) = kept.getvalue().splitlines()
    facts = json.loads(line)
    assert (facts["event"], facts["level"], facts["logger"]) == ("test.happened", "info", "maple.test")
    assert (facts["number"], facts["text"]) == (3, "two\nlines\x1b[31m")
    assert facts["timestamp"].endswith("Z")
    assert line.isascii()
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("wanted", "stream", "coloured", "as_json"),
    [
        ("auto", Terminal, True, False),
        ("auto", io.StringIO, False, True),
        ("console", io.StringIO, False, False),
        ("console", Terminal, True, False),
        ("json", Terminal, False, True),
    ],
)
def test_auto_is_colour_on_a_terminal_and_json_elsewhere(
    wanted, stream, coloured: bool, as_json: bool
) -> None:
    """The setting can ask for either."""
    kept = stream()
    logs.configure(level="info", format=wanted, stream=kept)
    structlog.get_logger("maple.test").info("test.happened", number=3)
    assert kept.getvalue().startswith("{") == as_json
    assert ("\x1b[" in kept.getvalue()) == coloured


@pytest.mark.parametrize(
    "hostile", ["a\nfake line", "a\r\x1b[2Kfake", "\x1b]0;title\x07", "bidi \u202e txet", "\x00", "\u2028"]
)
def test_user_text_is_escaped_on_a_console(hostile: str) -> None:
    """It can neither move the cursor, nor recolour, nor fake a line; the same for libraries' messages."""
    kept = io.StringIO()
    logs.configure(level="info", format="console", stream=kept)
    structlog.get_logger("maple.test").info("test.happened", text=hostile)
    logging.getLogger("tornado.general").warning("Malformed HTTP message: %s", hostile)
    lines = kept.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_the_level_holds_for_ours_and_for_libraries(level: str) -> None:
    """What is less severe is not written."""
    kept = io.StringIO()
    logs.configure(level=level, format="json", stream=kept)
    levels = ("debug", "info", "warning", "error")
    for name in levels:
        getattr(structlog.get_logger(f"maple.{level}"), name)("ours")
        getattr(logging.getLogger("some.library"), name)("theirs")
    expected = 2 * (len(levels) - levels.index(level))
    assert len(kept.getvalue().splitlines()) == expected


def test_libraries_and_warnings_come_out_in_the_same_form() -> None:
    """Tornado and every other library log through the standard library."""
    kept = io.StringIO()
    logs.configure(level="info", format="json", stream=kept)
    logging.getLogger("tornado.application").error("it %s", "broke")
    logging.getLogger("some.library").info("loaded")
    logging.captureWarnings(capture=False)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("take care", stacklevel=1)
        logging.captureWarnings(capture=False)
    lines = [json.loads(line) for line in kept.getvalue().splitlines()]
    assert [line["event"] for line in lines[:2]] == ["it broke", "loaded"]
    assert "take care" in lines[2]["event"]


def test_routine_lines_that_repeat_ours_are_left_out() -> None:
    """Tornado's access log, and its notes on peers that spoke no HTTP."""
    kept = io.StringIO()
    logs.configure(level="info", format="json", stream=kept)
    logging.getLogger("tornado.access").info("200 GET /")
    logging.getLogger("tornado.general").info("Malformed HTTP message")
    assert kept.getvalue() == ""


def test_a_traceback_shows_no_locals_and_no_message() -> None:
    """Both may hold a prompt."""

    def inner(prompt: str) -> None:
        raise KeyError(prompt)

    try:
        try:
            inner("wombat")
        except KeyError:
            raise ValueError("numbat") from None
    except ValueError as error:
        hidden = logs.traceback_text(error)
    try:
        try:
            inner("wombat")
        except KeyError as error:
            raise ValueError("numbat") from error
    except ValueError as error:
        chained = logs.traceback_text(error)
    assert hidden.endswith("ValueError")
    assert "KeyError" not in hidden
    assert chained.index("KeyError") < chained.index("ValueError")
    assert "inner" in chained
    for text in (hidden, chained):
        assert not any(f'"{secret}"' not in text and secret in text.split() for secret in SECRETS)


@pytest.mark.parametrize("stream", [True, False])
def test_no_prompt_answer_or_key_is_ever_logged(serve: Serve, log_lines, stream: bool) -> None:
    """At the most talkative level; good requests, bad ones and failures."""
    server = serve(
        Recording(match="break", pieces=("quokka",), finish="error"),
        Recording(pieces=("quokka", "</think>", "quokka")),
        api_key="sk-secret",
    )
    key = {"Authorization": "Bearer sk-secret"}
    path = "/v1/chat/completions"
    for text in ("wombat", "break wombat"):
        body = server.chat_body(text, stream=stream, user="numbat")
        server.request("POST", path, body, {**key, "Content-Type": "application/json"})
    server.request("POST", path, b'{"wombat": numbat}', {**key, "Content-Type": "application/json"})
    server.request("POST", path, {"messages": "wombat"}, {**key, "Content-Type": "application/json"})
    server.request("GET", "/wombat?q=numbat", headers=key)
    server.settle()
    lines = [json.dumps(line) for line in log_lines()]
    assert len(lines) >= 5
    assert not [line for line in lines if any(secret in line for secret in SECRETS)]


@pytest.mark.parametrize("stream", [True, False])
def test_malformed_markup_is_logged_once_a_turn(serve: Serve, log_lines, stream: bool) -> None:
    """With the request's id and the first fault, not with the model's words; good calls are not news."""
    bad = '<tool_call>{"quokka": 1}</tool_call>'
    server = serve(
        Recording(match="good", pieces=("</think>", '<tool_call>{"name": "f"}</tool_call>')),
        Recording(pieces=("</think>", *bad, "so\n", bad, "<tool_call>"), finish="length"),
    )
    for request_id, text in (("first", "wombat"), ("second", "good"), ("third", "wombat")):
        answer = server.post(CHAT, server.chat_body(text, stream=stream), {"X-Request-Id": request_id})
        assert answer.status == 200
    lines = [line for line in log_lines() if line["event"] == "turn.markup_malformed"]
    assert [(line["request_id"], line["fault"]) for line in lines] == [
        ("first", "no_call"),
        ("third", "no_call"),
    ]
    assert {line["level"] for line in lines} == {"warning"}
    assert not [line for line in lines if any(secret in json.dumps(line) for secret in SECRETS)]


def test_malformed_markup_is_logged_though_the_client_leaves(serve: Serve, log_lines) -> None:
    """What a client has seen enough of is still the model's fault."""
    server = serve(Recording(pieces=("</think>", "<tool_call>{}</tool_call>", *"abc" * 1000), delay_ms=10))
    with server.open_stream() as raw:
        server.read_until(raw, b"<tool_call>{}")
    server.until_idle()
    server.settle()
    assert [line["fault"] for line in log_lines() if line["event"] == "turn.markup_malformed"] == ["no_call"]


def test_the_access_line_has_its_facts(serve: Serve, log_lines) -> None:
    """Method, route pattern, status, milliseconds, id, address and owner."""
    server = serve()
    server.get("/v1/models/some/model", X_Request_Id="mine")
    server.settle()
    (line,) = [line for line in log_lines() if line["event"] == "http.request"]
    assert line["ms"] >= 0
    facts = {
        key: line[key] for key in ("method", "route", "status", "request_id", "remote", "scheme", "owner")
    }
    assert facts == {
        "method": "GET",
        "route": "/v1/models/{id}",
        "status": 200,
        "request_id": "mine",
        "remote": "127.0.0.1",
        "scheme": "http",
        "owner": "",
    }


def test_pages_and_probes_are_told_to_those_who_debug(serve: Serve, log_lines) -> None:
    """A probe a second would hide the rest; what is refused there is told to all."""
    server = serve()
    for path in ("/ui", "/healthz", "/readyz", "/v1/models"):
        server.get(path)
    server.request("PUT", "/healthz")
    server.settle()
    levels = [(line["route"], line["level"]) for line in log_lines() if line["event"] == "http.request"]
    routine = [(path, "debug") for path in ("/ui", "/healthz", "/readyz")]
    assert levels == [*routine, ("/v1/models", "info"), ("/healthz", "info")]
