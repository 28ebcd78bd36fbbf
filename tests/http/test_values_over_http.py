"""The contract's section "Values", line by line, over HTTP on both generating protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.http.conftest import Answer, LiveServer, Serve

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODIES: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
}
OPTIONAL = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "seed",
    "stream",
    "stream_options",
    "repetition_penalty",
    "session_id",
    "user",
    "n",
)
both = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def post(server: LiveServer, path: str, **fields: object) -> Answer:
    return server.post(path, {**BODIES[path], **fields})


@both
@pytest.mark.parametrize("field", OPTIONAL)
def test_null_means_absent(server: LiveServer, path: str, field: str) -> None:
    """For every optional field."""
    assert post(server, path, **{field: None}).status == 200


@both
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("max_tokens", 1.5),
        ("max_tokens", 2.0),
        ("seed", False),
        ("seed", 2.0),
        ("seed", 2**63),
        ("seed", -(2**63) - 1),
        ("top_k", 5.0),
        ("temperature", True),
        ("temperature", "0.5"),
        ("temperature", []),
        ("stream", 1),
        ("stream", "true"),
        ("stop", 5),
        ("stop", "\ud83d"),
        ("user", "\ud800"),
        ("model", "x" * 257),
        ("model", 5),
        ("session_id", "../up"),
    ],
)
def test_values_are_not_coerced(server: LiveServer, path: str, field: str, value: object) -> None:
    """A bool is not an integer, a string no number, 2.0 no integer; surrogates come in pairs."""
    answer = post(server, path, **{field: value})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, field, None)


def test_the_path_of_a_wrong_field_is_told(server: LiveServer) -> None:
    """Down to the part."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "\ud83d"}]
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": parts}]
    assert server.post(CHAT, {"messages": messages}).error["param"] == "messages[1].content[1].text"


def test_free_form_objects_may_hold_any_json_number(server: LiveServer) -> None:
    """Tool parameters and metadata are the client's own."""
    numbers = {"default": 2**70, "minimum": -1e300, "x": 1.5}
    tools = [{"type": "function", "function": {"name": "f", "parameters": numbers}}]
    assert server.chat(tools=tools, metadata={"n": 2**70}).status == 200


@both
@pytest.mark.parametrize(("strict", "status"), [("auto", 200), ("false", 200), ("true", 400)])
def test_unknown_top_level_fields(serve: Serve, path: str, strict: str, status: int) -> None:
    """Ignored on these two unless MAPLE_STRICT_FIELDS is true."""
    answer = post(serve(strict_fields=strict), path, frobnicate=1)
    assert answer.status == status
    if status == 400:
        assert (answer.error["param"], answer.error["code"]) == ("frobnicate", "invalid_parameter")


def test_unknown_keys_further_down_are_ignored(serve: Serve) -> None:
    """Even where top-level ones are refused."""
    messages = [{"role": "user", "content": "hi", "mood": "good"}]
    assert serve(strict_fields="true").post(CHAT, {"messages": messages}).status == 200


@both
@pytest.mark.parametrize("model", ["maple-preview", "gpt-4o", "org/x", "x" * 256, ""])
def test_the_model_is_echoed(server: LiveServer, path: str, model: str) -> None:
    """Whatever it says."""
    assert post(server, path, model=model).json["model"] == (model or "maple-preview")


@both
@pytest.mark.parametrize(
    ("model", "status"),
    [
        ("maple-preview", 200),
        ("MAPLE-Preview", 200),
        ("deepgrove/maple-preview", 200),
        ("a/b/Maple-preview", 200),
        ("maple", 404),
        ("maple-preview/x", 404),
        ("maple-preview-2", 404),
        (None, 200),
    ],
)
def test_strict_models_match_whole_or_by_the_last_segment(
    serve: Serve, path: str, model: str | None, status: int
) -> None:
    """Case aside. No model at all is no other model."""
    answer = post(serve(strict_model=True), path, model=model)
    assert answer.status == status
    if status == 404:
        assert (answer.error["param"], answer.error["code"]) == ("model", "model_not_found")


def test_a_session_can_be_named_in_a_header(server: LiveServer) -> None:
    """X-Session-Id has the same form as session_id; one that has not is a mere label, and is passed over."""
    body = server.chat_body()
    for session_id, ignored in (("conversation-7", None), ("../up", "X-Session-Id")):
        answer = server.post(CHAT, body, {"X-Session-Id": session_id, "Content-Type": "application/json"})
        assert (answer.status, answer.headers["X-Maple-Ignored"]) == (200, ignored)
