"""What clients ask for beyond the reference, row by row: at each level, streamed and whole alike (clients.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from maple.http.services import Limits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
SETTING = "is served with --api-level extended"
LEVELS = ["reference", "extended"]
HI = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi"}
FLAT = {"type": "function", "name": "look", "parameters": {"type": "object"}}
NESTED = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
HOSTED = [
    "web_search",
    "web_search_preview",
    "image_generation",
    "tool_search",
    "mcp",
    "computer_use_preview",
]


def post(server: LiveServer, path: str, **fields: object) -> Any:
    name = "prompt" if path == COMPLETIONS else "messages" if path.startswith(CHAT) else "input"
    return server.post(path, {name: HI[name], **fields})


def calling(name: str, arguments: object) -> Recording:
    call = json.dumps({"name": name, "arguments": arguments})
    return Recording(pieces=("</think>", f"<tool_call>\n{call}\n</tool_call>"))


def streamed(server: LiveServer, **fields: object) -> list[Any]:
    """The events of a streamed response, each of which the official SDK can read; the end is the whole one."""
    *events, done = post(server, RESPONSES, stream=True, **fields).events
    assert done == "[DONE]"
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event)
    check_items(events)
    whole = post(server, RESPONSES, **fields).json
    Response.model_validate(whole)
    assert alike(events[-1]["response"]) == alike(whole)
    return events


def check_items(events: list[Any]) -> None:
    """Every item keeps id and output_index from its first event on, and has a status all along."""
    added = {event["output_index"]: event["item"] for event in events if event["type"].endswith("item.added")}
    done = {event["output_index"]: event["item"] for event in events if event["type"].endswith("item.done")}
    output = events[-1]["response"]["output"]
    assert [added[index]["id"] for index in range(len(output))] == [item["id"] for item in output]
    assert [done[index] for index in range(len(output))] == output
    assert all(item["status"] == "in_progress" for item in added.values())
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == output[event["output_index"]]["id"]


def alike(response: Any) -> Any:
    """A response without what is made anew for each, or was cached by the first."""
    items = [{**item, "id": "", "call_id": ""} for item in response["output"]]
    usage = {**response["usage"], "input_tokens_details": {}}
    drawn = {"id": "", "created_at": 0, "completed_at": 0, "timings": {}}
    return {**response, **drawn, "output": items, "usage": usage}


@pytest.mark.parametrize("kind", HOSTED)
def test_tools_of_the_vendors_own_are_dropped(serve: Serve, kind: str) -> None:
    """With a word; a choice that names one stays a 400; at the reference level the refusal says how."""
    refused = post(serve(), RESPONSES, tools=[FLAT, {"type": kind}])
    assert (refused.error["param"], SETTING in refused.error["message"]) == ("tools[1].type", True)
    server = serve(api_level="extended")
    answer = post(server, RESPONSES, tools=[FLAT, {"type": kind}])
    assert (answer.status, answer.headers["X-Maple-Ignored"]) == (200, f"tools[].{kind}")
    assert [tool["name"] for tool in answer.json["tools"]] == ["look"]
    chosen = post(server, RESPONSES, tools=[FLAT, {"type": kind}], tool_choice={"type": kind})
    assert chosen.error["param"] == "tool_choice"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client_metadata", {"a": "b"}),
        ("access_programs", []),
        ("max_tool_calls", 3),
        ("prompt_cache_options", {}),
        ("context_management", [{}]),
        ("moderation", {"model": "x"}),
        ("conversation", "conv_1"),
    ],
)
def test_the_fields_of_codex_and_openai_are_known(
    serve: Serve, level: str, field: str, value: object
) -> None:
    """At both levels, also where unknown fields are refused; they are named."""
    for strict in ("auto", "true"):
        answer = post(
            serve(api_level=level, strict_fields=strict), RESPONSES, **{field: value}, top_logprobs=0
        )
        assert (answer.status, answer.headers["X-Maple-Ignored"]) == (200, field)


CUSTOM = {"type": "custom", "name": "patch", "description": "Patch.", "format": {"type": "text"}}


def test_a_custom_tool_is_called_with_its_text(serve: Serve) -> None:
    """The model is shown a function of one string; its call goes out as the tool's own."""
    assert SETTING in post(serve(), RESPONSES, tools=[CUSTOM]).error["message"]
    server = serve(calling("patch", {"input": "*** Begin"}), api_level="extended")
    events = streamed(server, tools=[CUSTOM])
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "*** Begin")
    assert [event["type"].removeprefix("response.") for event in events[2:-1]] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert events[-1]["response"]["tools"] == [CUSTOM]
    assert '"name": "patch"' in server.prompt()


def test_a_local_shell_is_called_with_its_command(serve: Serve) -> None:
    """By its schema; the client runs it."""
    shell = {"type": "local_shell"}
    assert SETTING in post(serve(), RESPONSES, tools=[shell]).error["message"]
    server = serve(calling("local_shell", {"command": ["ls", "-l"]}), api_level="extended")
    (item,) = streamed(server, tools=[shell])[-1]["response"]["output"]
    assert item["type"] == "local_shell_call"
    assert item["action"] == {"type": "exec", "command": ["ls", "-l"], "env": {}}


def test_a_namespaces_tools_are_told_apart(serve: Serve) -> None:
    """Two of one name have distinct names for the model; a call goes out under its own, with the namespace."""
    spaces = [
        {
            "type": "namespace",
            "name": space,
            "description": "",
            "tools": [FLAT, {**CUSTOM, "name": f"{space}_p"}],
        }
        for space in ("a", "b")
    ]
    assert SETTING in post(serve(), RESPONSES, tools=spaces).error["message"]
    server = serve(calling("b__look", {"x": 1}), api_level="extended")
    (item,) = streamed(server, tools=spaces)[-1]["response"]["output"]
    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "look", "b")
    for name in ("a__look", "b__look", "a_p", "b_p"):
        assert server.prompt().count(f'"name": "{name}"') == 1
    call = {key: item[key] for key in ("type", "call_id", "name", "namespace", "arguments")}
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "numbat"}
    assert server.post(RESPONSES, {"input": [call, output], "tools": spaces}).status == 200
    assert '{"name": "b__look", "arguments": {"x": 1}}' in server.prompt()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("summary", ["auto", "concise", "detailed"])
def test_a_summary_is_the_reasoning_in_one_part(serve: Serve, level: str, summary: str) -> None:
    """Instead of reasoning_text; it comes back as reasoning."""
    server = serve(api_level=level)
    events = streamed(server, reasoning={"summary": summary})
    assert [event["type"].removeprefix("response.") for event in events[2:7]] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
    ]
    assert events[2]["item"]["summary"] == []
    item = events[-1]["response"]["output"][0]
    assert (item["summary"], item["content"]) == ([{"type": "summary_text", "text": "Thinking."}], [])
    assert events[-1]["response"]["reasoning"]["summary"] == summary
    answer = server.post(RESPONSES, {"input": [{"role": "user", "content": "a"}, item]})
    assert answer.status == 200
    assert "<think>\nThinking.\n</think>" in server.prompt()


OFF: list[dict[str, object]] = [
    {"reasoning_effort": "none"},
    {"reasoning_effort": "minimal"},
    {"enable_thinking": False},
    {"thinking": {"type": "disabled"}},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"enabled": False}},
    {"think": False},
    {"enable_thinking": False, "thinking": {"type": "enabled"}, "reasoning_effort": "high"},
    {"think": False, "reasoning": {"effort": "high"}},
    {"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True},
]
ON: list[dict[str, object]] = [
    {"reasoning_effort": "low"},
    {"enable_thinking": "no"},
    {"thinking": {"type": "adaptive"}},
    {"reasoning": {"effort": "high"}, "reasoning_effort": "none"},
    {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False},
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("fields", "closed"), [*((each, True) for each in OFF), *((each, False) for each in ON)]
)
def test_clients_words_for_thinking_are_heard(
    serve: Serve, level: str, fields: dict[str, object], closed: bool
) -> None:
    """The first that is there counts; what says nothing is no refusal."""
    server = serve(api_level=level)
    assert post(server, CHAT, **fields).status == 200
    assert server.prompt().endswith("<think>\n\n</think>\n\n") is closed


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("effort", ["none", "minimal"])
def test_effort_none_and_minimal_turn_thinking_off_on_responses(
    serve: Serve, level: str, effort: str
) -> None:
    """Under both names."""
    server = serve(api_level=level)
    for fields in ({"reasoning": {"effort": effort}}, {"reasoning_effort": effort}):
        assert post(server, RESPONSES, **fields).status == 200
        assert server.prompt().endswith("<think>\n\n</think>\n\n")


OPEN_RESPONSES = {
    *(
        "completed_at",
        "truncation",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "max_tool_calls",
    ),
    *(
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "user",
        "temperature",
        "top_p",
        "store",
        "background",
    ),
}


@pytest.mark.parametrize("level", LEVELS)
def test_a_response_has_every_field_with_what_was_used(serve: Serve, level: str) -> None:
    """Also where a limit cut it; temperature and top_p are numbers, whoever chose them."""
    server = serve(api_level=level, temperature=0.25)
    whole = streamed(server, prompt_cache_key="k", safety_identifier="s", user="u")[-1]["response"]
    assert set(whole) >= OPEN_RESPONSES
    assert (whole["temperature"], whole["top_p"]) == (0.25, 0.95)
    assert (whole["prompt_cache_key"], whole["safety_identifier"], whole["user"]) == ("k", "s", "u")
    assert whole["completed_at"] >= whole["created_at"]
    assert whole["usage"]["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    cut = streamed(server, max_output_tokens=4, temperature=1)[-1]["response"]
    assert (cut["status"], cut["completed_at"], cut["temperature"]) == ("incomplete", None, 1.0)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_no_limit_but_the_servers(serve: Serve, field: str) -> None:
    """-1; at the reference level the refusal says how."""
    path = RESPONSES if field == "max_output_tokens" else CHAT
    refused = post(serve(), path, **{field: -1})
    assert (refused.error["param"], SETTING in refused.error["message"]) == (field, True)
    server = serve(api_level="extended")
    assert post(server, path, **{field: -1}).status == 200
    below = post(server, path, **{field: -2})
    assert (below.status, SETTING in below.error["message"]) == (400, False)


CHOICES: list[tuple[object, set[str]]] = [
    ("any", {"look", "other"}),
    ({"type": "auto"}, {"look", "other"}),
    ({"type": "any"}, {"look", "other"}),
    ({"type": "required"}, {"look", "other"}),
    ({"type": "none"}, set()),
    ({"type": "function", "name": "look"}, {"look"}),
    ({"type": "tool", "name": "look"}, {"look"}),
    (
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": "look"}}]},
        },
        {"look"},
    ),
    (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]},
        {"look"},
    ),
]


@pytest.mark.parametrize(("choice", "shown"), CHOICES)
def test_further_spellings_of_a_choice(serve: Serve, choice: object, shown: set[str]) -> None:
    """On both routes; at the reference level the refusal says how (the flat name is responses' own)."""
    other = {"type": "function", "function": {"name": "other"}}
    server, strict = serve(api_level="extended"), serve()
    for path in (CHAT, RESPONSES):
        refused = post(strict, path, tools=[NESTED, other], tool_choice=choice)
        if path == CHAT or choice != {"type": "function", "name": "look"}:
            assert (refused.error["param"], SETTING in refused.error["message"]) == ("tool_choice", True)
        assert post(server, path, tools=[NESTED, other], tool_choice=choice).status == 200
        assert {name for name in ("look", "other") if f'"name": "{name}"' in server.prompt()} == shown


@pytest.mark.parametrize(
    "choice", ["some", {"type": "web_search"}, {"type": "tool", "name": "nobody"}, 5, {}]
)
def test_a_choice_of_nothing_is_refused_at_both_levels(serve: Serve, choice: object) -> None:
    """What nobody serves does not name the setting."""
    for level in LEVELS:
        for path in (CHAT, RESPONSES):
            answer = post(serve(api_level=level), path, tools=[NESTED], tool_choice=choice)
            assert (answer.status, answer.error["param"]) == (400, "tool_choice")
            assert level == "reference" or SETTING not in answer.error["message"]


@pytest.mark.parametrize("level", LEVELS)
def test_json_object_is_the_same_on_every_route(serve: Serve, level: str) -> None:
    """Taken; at the reference level without effect, and named."""
    server = serve(api_level=level)
    form = {"type": "json_object"}
    extended = level == "extended"
    ignored = post(server, CHAT, response_format=form).headers["X-Maple-Ignored"]
    assert ignored == (None if extended else "response_format")
    answer = post(server, RESPONSES, text={"format": form})
    assert answer.headers["X-Maple-Ignored"] == (None if extended else "text.format")
    assert answer.json["text"] == {"format": form}


@pytest.mark.parametrize(
    ("path", "fields", "param", "setting"),
    [
        (CHAT, {"logprobs": True, "top_logprobs": 5}, "top_logprobs", True),
        (CHAT, {"logprobs": True}, "logprobs", True),
        (COMPLETIONS, {"logprobs": 0}, "logprobs", True),
        (CHAT, {"n": 2}, "n", False),
    ],
)
def test_what_the_reference_does_not_serve_is_named(
    serve: Serve, path: str, fields: dict[str, object], param: str, setting: bool
) -> None:
    """With the setting that does, but for the reference's own words."""
    error = post(serve(), path, **fields).error
    assert (error["param"], "--api-level extended" in error["message"]) == (param, setting)


@pytest.mark.parametrize("level", LEVELS)
def test_legacy_and_foreign_fields_are_named(serve: Serve, level: str) -> None:
    """functions, guided_json and the like have no effect, and no client need guess so."""
    answer = post(serve(api_level=level), CHAT, functions=[{"name": "f"}], guided_json={})
    assert (answer.status, answer.headers["X-Maple-Ignored"]) == (200, "functions,guided_json")


def test_what_no_retry_can_mend_says_so(serve: Serve) -> None:
    """SDKs repeat a 501 three times unless they are told; what may pass, they may repeat."""
    server = serve()
    for answer in (post(server, RESPONSES, store=True), server.get("/v1/responses/resp_x")):
        assert (answer.status, answer.headers["x-should-retry"]) == (501, "false")
    assert post(server, CHAT, n=2).headers["x-should-retry"] is None
    assert post(serve(loaded=False), CHAT).headers["x-should-retry"] is None


@pytest.mark.parametrize("level", LEVELS)
def test_prompts_are_counted(serve: Serve, level: str) -> None:
    """As the answer's usage would; input and model are optional; other methods are refused as everywhere."""
    server = serve(api_level=level)
    for path, counted, used in (
        (CHAT, "chat.completion.input_tokens", "prompt_tokens"),
        (RESPONSES, "response.input_tokens", "input_tokens"),
    ):
        tokens = post(server, path, tools=[NESTED]).json["usage"][used]
        answer = post(server, f"{path}/input_tokens", tools=[NESTED])
        assert (answer.status, answer.json) == (200, {"object": counted, "input_tokens": tokens})
        assert server.get(f"{path}/input_tokens").headers["Allow"] == "POST"
    assert server.post(f"{RESPONSES}/input_tokens", {}).json["input_tokens"] == 0
    assert server.post(f"{RESPONSES}/input_tokens", {"instructions": "be brief"}).json["input_tokens"] > 3
    assert post(server, f"{RESPONSES}/input_tokens", temperature=9).error["param"] == "temperature"


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_compact_is_no_route(serve: Serve, method: str) -> None:
    """404, and not another route's 405."""
    server = serve(api_level="extended")
    answer = server.request(method, f"{RESPONSES}/compact", {} if method == "POST" else None)
    assert (answer.status, answer.error["code"]) == (404, "route_not_found")
    assert "/v1/responses/{id}/compact" not in server.get("/openapi.json").json["paths"]


def in_progress(stream: Iterator[Any]) -> Any:
    """The next repeated response.in_progress."""
    return next(event for event in stream if event["type"] == "response.in_progress")


@pytest.mark.parametrize("level", LEVELS)
def test_a_client_hears_of_waiting_in_events(serve: Serve, level: str) -> None:
    """response.created before any wait; then response.in_progress with what there is so far, numbered on."""
    slow = Recording(match="slow", pieces=("Hm", "</think>", "a", "b"), delay_ms=150)
    server = serve(slow, limits=Limits(ping_seconds=0.05), api_level=level)
    with server.open_stream("slow") as first:
        server.read_until(first, b"data:")
        body = {"input": "slow", "stream": True}
        events = server.post(RESPONSES, body).events[:-1]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:3]] == ["response.created", *["response.in_progress"] * 2]
    waiting = [event["response"] for event in events[2:] if event["type"] == "response.in_progress"]
    assert {response["id"] for response in waiting} == {events[0]["response"]["id"]}
    assert waiting[0]["output"] == []
    assert [item["status"] for item in waiting[-1]["output"]][-1] == "in_progress"
    assert waiting[-1]["output"][0]["content"][0]["text"] == "Hm"
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event)


def closed(schema: Any) -> Any:
    """A schema that takes no field beyond those that it tells of."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return inner | ({"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {})


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_no_answer_holds_a_field_that_is_not_described(serve: Serve, path: str) -> None:
    """Answers and their description are of one making: nothing goes out that /openapi.json does not tell."""
    server = serve(Recording(pieces=("Hm", "</think>", 'a<tool_call>{"name": "f"}</tool_call>')))
    document = server.get("/openapi.json").json
    content = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]
    schema = {**closed(content["schema"]), "components": closed(document["components"])}
    jsonschema.Draft202012Validator(schema).validate(post(server, path, tools=[NESTED]).json)


def test_schemas_are_served_at_the_extended_level(serve: Serve) -> None:
    """At the reference level the refusal says so; what cannot be enforced is blamed on the schema."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    flat = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    for path, fields, param in (
        (CHAT, {"response_format": schema}, "response_format"),
        (RESPONSES, {"text": {"format": flat}}, "text.format.type"),
    ):
        error = post(serve(), path, **fields).error
        assert (error["param"], SETTING in error["message"]) == (param, True)
        assert post(serve(api_level="extended"), path, **fields).status == 200
    schema["json_schema"] = {"schema": {"not": {}}}
    error = post(serve(api_level="extended"), CHAT, response_format=schema).error
    assert (error["param"], "not" in error["message"]) == ("response_format.json_schema.schema", True)
