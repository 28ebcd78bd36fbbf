"""The error table's rows and the lines of "Values" on /v1/responses, where they read differently."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import pytest

from maple.engine.admission import QueueLimits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import Answer, LiveServer, Serve

PATH = "/v1/responses"
INVALID = "invalid_request_error"
OPTIONAL = (
    *("model", "instructions", "max_output_tokens", "temperature", "top_p", "top_k", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "seed", "stop", "stream", "tools", "tool_choice", "user"),
    *("parallel_tool_calls", "reasoning", "text", "metadata", "session_id", "chat_template_kwargs"),
    *("include_reasoning", "include", "truncation", "stream_options", "prompt_cache_key", "service_tier"),
    *("prompt_cache_retention", "safety_identifier", "background", "store", "previous_response_id"),
)
BROKEN = Recording(match="broken", pieces=(), finish="error")
LATER = Recording(match="later", pieces=("</think>", "half"), finish="error")


def post(server: LiveServer, **fields: object) -> Answer:
    return server.post(PATH, {"input": "hi", **fields})


def facts(answer: Answer) -> tuple[int, Any, Any, Any]:
    error = answer.error
    return answer.status, error["type"], error["param"], error["code"]


@pytest.mark.parametrize("field", OPTIONAL)
def test_null_means_absent(server: LiveServer, field: str) -> None:
    """For every optional field."""
    assert post(server, **{field: None}).status == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_output_tokens", True),
        ("max_output_tokens", "5"),
        ("max_output_tokens", 2.0),
        ("seed", 2**63),
        ("seed", 1.5),
        ("temperature", True),
        ("temperature", "1"),
        ("stream", 1),
        ("store", "true"),
        ("instructions", "\ud800"),
        ("model", "x" * 257),
        ("session_id", ".up"),
        ("previous_response_id", 5),
        ("background", True),
    ],
)
def test_400_a_wrong_field_is_an_invalid_parameter(server: LiveServer, field: str, value: object) -> None:
    """Nothing is coerced, and here every wrong field has a code."""
    assert facts(post(server, **{field: value})) == (400, INVALID, field, "invalid_parameter")


def test_the_path_of_a_wrong_field_is_told(server: LiveServer) -> None:
    """Down to the part."""
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "\ud83d"}]
    items = [{"role": "user", "content": "a"}, {"role": "user", "content": parts}]
    assert facts(post(server, input=items))[2] == "input[1].content[1].text"


def test_free_form_objects_may_hold_any_json_number(server: LiveServer) -> None:
    """Tool parameters, arguments and metadata are the client's own; metadata comes back as it was."""
    numbers = {"big": 2**70, "small": -1e300}
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": numbers}
    tools = [{"type": "function", "name": "f", "parameters": numbers}]
    items = [{"role": "user", "content": "hi"}, call]
    answer = post(server, input=items, tools=tools, metadata=numbers)
    assert (answer.status, answer.json["metadata"]) == (200, numbers)


@pytest.mark.parametrize(("strict", "status"), [("auto", 400), ("true", 400), ("false", 200)])
def test_unknown_top_level_fields_are_refused(serve: Serve, strict: str, status: int) -> None:
    """Unless MAPLE_STRICT_FIELDS is false; further down they are ignored."""
    server = serve(strict_fields=strict)
    answer = post(server, frobnicate=1)
    assert answer.status == status
    if status == 400:
        assert facts(answer) == (400, INVALID, "frobnicate", "invalid_parameter")
    deep = {"type": "message", "role": "user", "content": "hi", "frobnicate": 1}
    assert post(server, input=[deep], text={"frobnicate": 1}).status == 200


@pytest.mark.parametrize(
    ("model", "status"), [("maple-preview", 200), ("org/MAPLE-Preview", 200), ("gpt", 404)]
)
def test_404_another_model_where_the_server_is_strict(serve: Serve, model: str, status: int) -> None:
    """MAPLE_STRICT_MODEL: whole or by its last segment, in any case."""
    answer = post(serve(strict_model=True), model=model)
    assert answer.status == status
    if status == 404:
        assert facts(answer) == (404, INVALID, "model", "model_not_found")


def test_400_context_length_exceeded_blames_the_input(serve: Serve) -> None:
    """With both counts, as on chat."""
    answer = post(serve(max_prompt_tokens=50), input="word " * 2000)
    assert facts(answer) == (400, INVALID, "input", "context_length_exceeded")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"input": NaN}', b'{"input": "a", "input": "b"}', b"\xff"]
)
def test_400_invalid_json(server: LiveServer, body: bytes) -> None:
    """The body as a whole: no param."""
    assert facts(server.post(PATH, body)) == (400, INVALID, None, "invalid_json")


def test_500_before_the_slot_is_a_true_status(serve: Serve) -> None:
    """The model broke before the first token had a status line to follow; a stream has begun by then."""
    server = serve(BROKEN)
    assert facts(post(server, input="no recording matches")) == (500, "server_error", None, None)
    *_, failed, end = post(server, input="no recording matches", stream=True).events
    assert (failed["type"], end) == ("response.failed", "[DONE]")


def test_a_failure_in_the_stream_is_in_band(serve: Serve) -> None:
    """response.failed, then [DONE]; the id is that of response.created."""
    events = post(serve(LATER), input="later", stream=True).events
    assert [event if event == "[DONE]" else event["type"] for event in events[-2:]] == [
        "response.failed",
        "[DONE]",
    ]
    failed = events[-2]["response"]
    assert failed["id"] == events[0]["response"]["id"]
    assert failed["error"] == {"code": "server_error", "message": "generation failed"}


def test_503_the_queue_is_full(serve: Serve) -> None:
    """At once, with Retry-After: 5."""
    forever = Recording(pieces=("x",) * 10_000, delay_ms=20)
    server = serve(forever, queue=QueueLimits(slots=1, depth=0))
    raw = server.open_stream("hi")
    server.hold(raw)
    server.until(lambda: server.engine.stats().running == 1)
    answer = post(server)
    assert facts(answer) == (503, "server_error", None, "engine_overloaded")
    assert answer.headers["Retry-After"] == "5"


def test_503_while_the_model_loads_and_stored_responses_are_there(
    serve: Serve, tmp_path: pathlib.Path
) -> None:
    """Reading needs no model."""
    server = serve(loaded=False, response_store=f"sqlite:{tmp_path}/responses.db")
    assert facts(post(server)) == (503, "server_error", None, "model_loading")
    assert facts(server.get(f"{PATH}/resp_x")) == (404, INVALID, None, "not_found")


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%00", "a%20b", "resp_" + "x" * 5000, "%ff"])
def test_any_id_is_merely_unknown(serve: Serve, tmp_path: pathlib.Path, name: str) -> None:
    """However it is encoded, for each of the routes."""
    server = serve(response_store=f"sqlite:{tmp_path}/responses.db")
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
        assert facts(server.request(method, f"{PATH}/{name}{path}")) == (404, INVALID, None, "not_found")


@pytest.mark.parametrize("path", [f"{PATH}/resp_x", f"{PATH}/resp_x/input_items"])
def test_405_on_stored_responses(server: LiveServer, path: str) -> None:
    """The exact Allow of each."""
    allowed = "GET, HEAD" if path.endswith("items") else "GET, HEAD, DELETE"
    answer = server.post(path, {})
    assert (answer.status, answer.headers["Allow"]) == (405, allowed)


def test_a_session_can_be_named_in_a_header(server: LiveServer) -> None:
    """X-Session-Id has the same form as session_id; one that has not is a label, and is passed over."""
    good = server.post(PATH, {"input": "hi"}, {"X-Session-Id": "abc"})
    label = server.post(PATH, {"input": "hi"}, {"X-Session-Id": "../up"})
    assert (good.status, good.headers["X-Maple-Ignored"]) == (200, None)
    assert (label.status, label.headers["X-Maple-Ignored"]) == (200, "X-Session-Id")
    assert facts(post(server, session_id="../up")) == (400, INVALID, "session_id", "invalid_parameter")
