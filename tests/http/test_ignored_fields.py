"""X-Maple-Ignored: what a request held in vain is said to its client and in the log."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

HEADER = "X-Maple-Ignored"
HI = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi"}
PROMPTS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/responses": "input"}


def ignored(server: LiveServer, path: str, **fields: object) -> str | None:
    prompt = PROMPTS[path]
    answer = server.post(path, {prompt: HI[prompt], **fields})
    assert answer.status == 200
    return answer.headers[HEADER]


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("level", ["reference", "extended"])
def test_what_has_no_effect_is_named(serve: Serve, path: str, level: str) -> None:
    """At both levels; in a stream too; nothing is said where there is nothing to say, and null is nothing."""
    server = serve(api_level=level)
    assert ignored(server, path, temperature=0, user=None, frequency_penalty=0) is None
    penalty = "user,presence_penalty" if level == "reference" else "user"
    assert ignored(server, path, user="x", presence_penalty=0.5) == penalty
    assert ignored(server, path, user="x", stream=True) == "user"


@pytest.mark.parametrize(
    ("path", "level"),
    [
        ("/v1/chat/completions", "reference"),
        ("/v1/completions", "reference"),
        ("/v1/responses", "extended"),
    ],
)
def test_unknown_fields_are_named_in_ascii(serve: Serve, path: str, level: str) -> None:
    """A name that a header cannot hold is a question mark; each name is there once."""
    server = serve(api_level=level)
    fields = {"frobnicate": 1, "x-y.z": 2, "späte": 3, "a,b": 4, "": 5, "x" * 65: 6, "nothing": None}
    assert ignored(server, path, **fields) == "frobnicate,x-y.z,?"


def test_a_long_list_ends_in_an_ellipsis(serve: Serve) -> None:
    """512 bytes at most, and then the ellipsis, in UTF-8."""
    found = ignored(serve(), "/v1/chat/completions", **{f"field_number_{n}": n for n in range(100)})
    assert found is not None
    assert re.fullmatch(r"[A-Za-z0-9_,]{512}…", found.encode("latin-1").decode())


@pytest.mark.parametrize("level", ["reference", "extended"])
def test_null_is_never_an_unknown_field(serve: Serve, level: str) -> None:
    """Clients send null for what they leave out, under names that no list foresees."""
    server = serve(api_level=level)
    answer = server.post("/v1/responses", {"input": "hi", "next_years_field": None})
    assert (answer.status, answer.headers[HEADER]) == (200, None)


@pytest.mark.parametrize(("level", "status"), [("reference", 400), ("extended", 200)])
def test_unknown_fields_of_a_response_go_by_the_level(serve: Serve, level: str, status: int) -> None:
    """And are refused at both levels where the server is told to be strict."""
    body = {"input": "hi", "next_years_field": 1}
    assert serve(api_level=level).post("/v1/responses", body).status == status
    assert serve(api_level=level, strict_fields="true").post("/v1/responses", body).status == 400


def test_the_log_names_them_too(serve: Serve, log_lines: Callable[[], list[dict[str, Any]]]) -> None:
    """With the request's id, and never with a value."""
    answer = serve().chat(user="wombat", frobnicate="quokka")
    (line,) = (each for each in log_lines() if each["event"] == "http.ignored")
    assert line["fields"] == ["frobnicate", "user"]
    assert line["request_id"] == answer.headers["X-Request-Id"]
    assert "quokka" not in str(line)
