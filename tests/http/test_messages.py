"""POST /v1/messages over HTTP: whole, streamed, counted and refused, in Anthropic's shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maple.engine.admission import QueueLimits
from maple.http.services import Limits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>'
BODY: dict[str, Any] = {"model": "m", "max_tokens": 999, "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"name": "read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}]


def body(*turns: Any, **fields: Any) -> dict[str, Any]:
    messages = [{"role": role, "content": content} for role, content in turns] or BODY["messages"]
    return {**BODY, "messages": messages, **fields}


def events(server: LiveServer, sent: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream; each is named by its type, and nothing but events is sent."""
    blocks = server.post("/v1/messages", {**sent, "stream": True}).body.decode().split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def folded(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """A client's fold."""
    message: dict[str, Any] = {}
    pieces: dict[int, str] = {}
    for event in stream:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                kind = delta.pop("type")
                if kind == "input_json_delta":
                    pieces[event["index"]] = pieces.get(event["index"], "") + delta["partial_json"]
                for key, text in () if kind == "input_json_delta" else delta.items():
                    block[key] += text
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    for index, piece in pieces.items():
        message["content"][index]["input"] = json.loads(piece)
    return message


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "kinds", "reason"),
    [
        ("Hm.</think>\n\nHello", ["thinking", "text"], "end_turn"),
        (f"Hm.</think>\n\nLook{CALL}{CALL}", ["thinking", "text", "tool_use", "tool_use"], "tool_use"),
        ("</think>\n\n", ["text"], "end_turn"),
    ],
)
def test_a_stream_folds_to_the_whole_answer(
    serve: Serve, text: str, size: int, kinds: list[str], reason: str
) -> None:
    """However the model's text is cut; ids apart, which are made for each."""
    pieces = tuple(text[start : start + size] for start in range(0, len(text), size))
    server = serve(Recording(pieces=pieces), prefix_cache_mb=0)
    sent = body(tools=TOOLS)
    whole, streamed = server.post("/v1/messages", sent).json, folded(events(server, sent))
    assert [block["type"] for block in whole["content"]] == kinds
    assert (whole["stop_reason"], whole["stop_sequence"], whole["stop_details"]) == (reason, None, None)
    for message in (whole, streamed):
        assert message.pop("id").startswith("msg_")
        message["usage"].pop("cache_read_input_tokens"), message["usage"].pop("input_tokens")
        for block in message["content"]:
            assert block.pop("id", "toolu_").startswith("toolu_")
    assert whole == streamed


def test_thinking_is_signed_and_can_be_kept_out(serve: Serve) -> None:
    """The signature is the text's; ``display: omitted`` keeps the block and its signature alone."""
    server = serve(Recording(pieces=("Hm.", "</think>", "ok")))
    shown = server.post("/v1/messages", BODY).json["content"][0]
    sent = {**BODY, "thinking": {"type": "adaptive", "display": "omitted"}}
    hidden = server.post("/v1/messages", sent).json["content"][0]
    assert (shown["thinking"], hidden["thinking"]) == ("Hm.", "")
    assert shown["signature"] == hidden["signature"] != ""
    assert folded(events(server, sent))["content"][0] == hidden


def test_the_stop_sequence_is_named(serve: Serve) -> None:
    """The one that began first; and a limit is max_tokens, a full window a reason of its own."""
    server = serve(Recording(pieces=("</think>", "one two three four")))
    stopped = server.post("/v1/messages", {**BODY, "stop_sequences": ["four", "two"]}).json
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "two")
    assert stopped["content"][0]["text"] == "one "
    short = serve(Recording(pieces=("</think>", "a", "b", "c")))
    assert short.post("/v1/messages", {**BODY, "max_tokens": 2}).json["stop_reason"] == "max_tokens"


def test_the_prompt_holds_what_was_sent_in_its_order(serve: Serve) -> None:
    """Results and texts keep their order, a later system message its place; the billing block and what the model
    cannot read do not get there.
    """
    server = serve(Recording(pieces=("</think>ok",)))
    image = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "R-1"}, image]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "R-2", "is_error": True},
        {"type": "web_search_tool_result", "content": []},
        {"type": "text", "text": "U-2", "cache_control": {"type": "ephemeral"}},
    ]
    calls = [
        {"type": "thinking", "thinking": "T-1", "signature": "any"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "A-1"},
        {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "P-1"}},
    ]
    system = [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "S-1"}]
    sent = body(("user", "U-1"), ("assistant", calls), ("user", results), ("system", "S-2"), system=system)
    answer = server.post("/v1/messages", {**sent, "tools": TOOLS, "unheard": 1})
    assert answer.status == 200, answer.body
    prompt = server.prompt()
    words = ["S-1", "U-1", "A-1", "P-1", "R-1", "[image omitted", "Error: R-2", "U-2", "S-2"]
    places = [prompt.index(word) for word in words]
    assert places == sorted(places)
    assert "billing" not in prompt
    ignored = {"unheard", "messages[].content[].web_search_tool_result", "messages[].content[].image"}
    assert set(answer.headers["X-Maple-Ignored"].split(",")) == ignored


def test_a_prefill_goes_on(serve: Serve) -> None:
    """The last message stays open and nothing is thought; the answer is what is new."""
    server = serve(Recording(pieces=(" there",)))
    answer = server.post("/v1/messages", body(("user", "hi"), ("assistant", "Hello"))).json
    assert answer["content"] == [{"type": "text", "text": " there"}]
    assert server.prompt().endswith("Hello")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens is required"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"model": None}, "model is required"),
        ({"messages": []}, "messages must not be empty"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role must be one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content is required"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content must be a string"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type is required"),
        ({"messages": [{"role": "user", "content": [{"type": 1}]}]}, "messages[0].content[0].type must be"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text is required"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "[0].text must be a"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "must hold some text"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "a", "input": 1}]}]},
            "content[0].input must be an object",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "\ud800"}]}]},
            "content[0].content must not hold a lone surrogate",
        ),
        ({"messages": [{"role": "assistant", "content": "a "}]}, "cannot end with trailing whitespace"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "name": "a", "input": {}}]}
                ]
            },
            "must not end in tool_use",
        ),
        ({"system": 1}, "system must be a string"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type must be one of"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
        ({"tool_choice": {"type": "tool", "name": "a"}}, "tool_choice.name must name one of the tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type must be auto or none"),
        ({"thinking": {"type": 1}}, "thinking.type must be a string"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens is required"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens must be at least"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "must be less than max_tokens"),
        ({"output_config": {"effort": 1}}, "output_config.effort must be a string"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type must be one of"),
        (
            {"output_format": {"type": "json_schema", "schema": 1}},
            "output_format.schema must be a JSON Schema",
        ),
        ({"temperature": 1.5}, "temperature must be at least 0 and at most 1"),
    ],
)
def test_a_wrong_field_is_named(server: LiveServer, fields: dict[str, Any], words: str) -> None:
    """A 400 in Anthropic's shape, with the same id in body and headers."""
    sent = {name: value for name, value in {**BODY, **fields}.items() if value is not None}
    answer = server.post("/v1/messages", sent)
    told = answer.json
    assert (answer.status, told["type"], told["error"]["type"]) == (400, "error", "invalid_request_error")
    assert words in told["error"]["message"]
    assert told["request_id"] == answer.headers["request-id"] == answer.headers["X-Request-Id"]


def test_refusals_before_the_body_have_the_shape_too(serve: Serve) -> None:
    """Key, method, type, size; an overloaded or loading server is 529 with a wait of at most a minute."""
    server = serve(api_key="k", limits=Limits(body_bytes=4000))
    key = {"x-api-key": "k"}
    wrong = {"x-api-key": "no", "Authorization": "Bearer k"}
    found = [
        server.post("/v1/messages", BODY),
        server.request("GET", "/v1/messages", headers=key),
        server.post("/v1/messages", b"{}", {**key, "Content-Type": "text/plain"}),
        server.post("/v1/messages", b" " * 5000, key),
        serve(loaded=False).post("/v1/messages", BODY),
        serve(strict_model=True).post("/v1/messages", BODY),
    ]
    assert [(each.status, each.json["error"]["type"]) for each in found] == [
        (401, "authentication_error"),
        (405, "invalid_request_error"),
        (415, "invalid_request_error"),
        (413, "request_too_large"),
        (529, "overloaded_error"),
        (404, "not_found_error"),
    ]
    assert 1 <= int(found[4].headers["Retry-After"]) <= 60
    assert [server.post("/v1/messages", BODY, each).status for each in (key, wrong)] == [200, 200]
    assert server.get("/v1/stats", x_api_key="k").status == 200


def test_a_prompt_that_is_too_long_says_so(serve: Serve) -> None:
    """In the words at which clients compact their history."""
    server = serve(max_prompt_tokens=5)
    told = server.post("/v1/messages", body(("user", "many words " * 20))).json["error"]["message"]
    assert told.startswith("prompt is too long: ")
    assert told.endswith(" tokens > 5 maximum")


def test_a_prompt_is_counted(server: LiveServer) -> None:
    """Without max_tokens, and to what an answer's usage says."""
    sent = {key: value for key, value in BODY.items() if key != "max_tokens"}
    counted = server.post("/v1/messages/count_tokens?beta=true", sent)
    usage = server.post("/v1/messages?beta=true", BODY).json["usage"]
    assert counted.json == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert counted.headers["request-id"]


@pytest.mark.parametrize(
    ("headers", "metadata", "session"),
    [
        ({"X-Session-Id": "a", "X-Claude-Code-Session-Id": "b"}, None, "a"),
        ({"X-Claude-Code-Session-Id": "b"}, {"user_id": "user_1_session_c"}, "b"),
        ({"X-Claude-Code-Session-Id": "un fit"}, {"user_id": "user_1_session_c"}, "c"),
        ({}, {"user_id": '{"session_id": "d"}'}, "d"),
        ({}, {"user_id": "[1]"}, None),
        ({}, {"user_id": "me"}, None),
    ],
)
def test_the_session_is_found(headers: dict[str, str], metadata: Any, session: str | None) -> None:
    """In a header of ours, in Claude Code's, or in the user's id."""
    from maple_protocols.adapter import Policy
    from maple_protocols.anthropic.adapter import MessagesAdapter

    policy = Policy(
        session_header=headers.get("X-Session-Id"),
        headers={name.lower(): value for name, value in headers.items()},
    )
    assert MessagesAdapter().structure({**BODY, "metadata": metadata}, policy).session_id == session


def test_a_streams_first_event_tells_what_was_cached(serve: Serve) -> None:
    """A client that reads the usage of ``message_start`` alone sees the counts of the whole answer."""
    server = serve(Recording(pieces=("</think>", "ok")))
    events(server, sent := body(("user", "word " * 200)))
    again = events(server, sent)
    started = again[0]["message"]["usage"]
    ended = next(event["usage"] for event in again if event["type"] == "message_delta")
    assert started["cache_read_input_tokens"] == ended["cache_read_input_tokens"] > 0
    assert started["input_tokens"] == ended["input_tokens"]


def test_silence_is_broken_by_pings_and_failures_end_the_stream(serve: Serve) -> None:
    """Before the slot only pings; a failure behind the status line is one error event, the last."""
    slow = Recording(pieces=("</think>", "a", "b"), delay_ms=300)
    server = serve(slow, limits=Limits(ping_seconds=0.05), queue=QueueLimits(slots=1))
    first = server.connect()
    server.hold(first)
    first.sendall(server.request_bytes("/v1/messages", {**BODY, "stream": True}))
    server.until(lambda: server.engine.stats().running == 1)
    kinds = [event["type"] for event in events(server, BODY)]
    assert kinds[0] == "ping"
    assert next(kind for kind in kinds if kind != "ping") == "message_start"
    broken = serve(Recording(pieces=("</think>", "a"), finish="error"))
    last = events(broken, BODY)[-1]
    assert set(last) == {"type", "error", "request_id"}
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


def test_models_are_listed_in_either_shape(serve: Serve) -> None:
    """An anthropic-version asks for Anthropic's; aliases are listed and accepted."""
    server = serve(model_aliases=("claude-x",), strict_model=True)
    ours = server.get("/v1/models").json
    assert [card["id"] for card in ours["data"]] == ["maple-preview", "claude-x"]
    version = {"anthropic_version": "2023-06-01"}
    page = server.get("/v1/models", **version).json
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("maple-preview", "claude-x", False)
    assert page["data"][0]["created_at"].endswith("Z")
    assert server.get("/v1/models?limit=1", **version).json["has_more"] is True
    after = server.get("/v1/models?after_id=claude-x", **version).json
    assert (after["data"], after["first_id"]) == ([], None)
    before = server.get("/v1/models?before_id=claude-x&limit=1", **version).json
    assert [card["id"] for card in before["data"]] == ["maple-preview"]
    assert server.get("/v1/models/claude-x", **version).json["id"] == "claude-x"
    missing = server.get("/v1/models/other", **version)
    assert (missing.status, missing.json["error"]["type"]) == (404, "not_found_error")
    assert server.get("/v1/models?limit=x", **version).status == 400
    assert server.post("/v1/messages", {**BODY, "model": "claude-x"}).status == 200


def test_two_requests_that_differ_in_the_billing_block_share_their_prefix(serve: Serve) -> None:
    """It is not rendered; nor does a system message in the middle move."""
    server = serve(Recording(pieces=("</think>ok",)))
    prompts = []
    for word in ("1", "2"):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: {word}"},
            {"type": "text", "text": "S"},
        ]
        sent = body(("user", "a" * 400), ("system", "in the middle"), ("user", "b"), system=system)
        assert server.post("/v1/messages", sent).status == 200
        prompts.append(server.engine.last_prompt)
    assert prompts[0] == prompts[1]


def test_progress_and_timings_stay_within_the_known_events(serve: Serve) -> None:
    """Progress is a member of pings, timings one of message_delta and of the whole message."""
    server = serve(Recording(pieces=("</think>", "a"), delay_ms=20))
    stream = events(server, {**BODY, "return_progress": True, "timings": True})
    assert any("prompt_progress" in event for event in stream if event["type"] == "ping")
    assert any("timings" in event for event in stream if event["type"] == "message_delta")
    assert "timings" in server.post("/v1/messages", {**BODY, "timings": True}).json


def test_what_else_a_message_can_hold(serve: Serve) -> None:
    """Instructions as text, search results, nothing at all; tools that the model may not have; a repeated fold."""
    server = serve(Recording(pieces=("</think>ok",)))
    found = {"type": "search_result", "title": "Title", "content": [{"type": "text", "text": "Found"}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [found, {"type": "image"}]}
    sent = body(("user", [result]), ("assistant", []), system="S-0", max_tokens=5000)
    sent["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    sent["output_config"] = {"effort": "low"}
    sent["tool_choice"] = {"type": "none", "disable_parallel_tool_use": True}
    sent["tools"] = [{"type": "web_search_20250305", "name": "web_search"}, {"type": 1}, *TOOLS]
    answer = server.post("/v1/messages", sent)
    assert answer.status == 200, answer.body
    prompt = server.prompt()
    assert "S-0" in prompt
    assert "Title\nFound" in prompt
    assert "web_search" not in prompt
    assert "<tools>" not in prompt
    ignored = set(answer.headers["X-Maple-Ignored"].split(","))
    vain = {"tool_choice.disable_parallel_tool_use"}
    assert vain | {"tools[].web_search_20250305", "tools[].?"} <= ignored
    assert server.post("/v1/messages", body(("user", []), ("assistant", "a"), ("user", "b"))).status == 200


@pytest.mark.parametrize("code", ["engine_overloaded", None])
def test_the_type_of_a_failure_in_the_stream(code: str | None) -> None:
    """What a wait may mend is an overload; a request that cannot be served is the request's."""
    from maple_protocols.anthropic.errors import type_of
    from maple_protocols.errors import ErrorBody

    kind = "server_error" if code else "invalid_request_error"
    expected = "overloaded_error" if code else "invalid_request_error"
    assert type_of(ErrorBody(message="m", type=kind, code=code)) == expected


def test_what_is_forced_and_bounded_reaches_the_engine() -> None:
    """Calls, one or more, with the named tool alone; a form; a budget and an effort."""
    from maple_protocols.adapter import Policy
    from maple_protocols.anthropic.adapter import MessagesAdapter
    from maple_protocols.ask import Conversation, ForcedCalls

    tools = [{**TOOLS[0], "strict": True}, {"name": "write", "input_schema": {"type": "object"}}]
    schema = {"type": "json_schema", "schema": {"type": "object"}}
    sent = {
        **BODY,
        "max_tokens": 5000,
        "tools": tools,
        "tool_choice": {"type": "tool", "name": "read", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "output_config": {"effort": "low", "format": schema},
    }
    ask = MessagesAdapter().structure(sent, Policy())
    assert isinstance(ask.prompt, Conversation)
    assert [spec.name for spec in ask.prompt.tool_specs] == ["read"]
    assert ask.forced_calls == ForcedCalls(single=True, strict=frozenset({"read"}))
    assert ask.form is not None
    assert (ask.form.param, ask.form.value) == ("output_config.format.schema", {"type": "object"})
    assert (ask.thinking_budget, ask.effort, ask.ignored) == (2000, "low", ())
    named = MessagesAdapter().structure({**BODY, "output_format": schema}, Policy())
    assert named.form == ask.form
