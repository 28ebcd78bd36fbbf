"""What clients hold in their history is rendered, replaced by a few words, or dropped with a word: clients.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SETTING = "is served with --api-level extended"
OMITTED = "[{} omitted: this model reads text only]"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,xx"}}
SPOKEN = {"type": "text", "text": "look"}
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def strict(serve: Serve) -> LiveServer:
    """A server at the reference level."""
    return serve()


@pytest.fixture
def open_one(serve: Serve) -> LiveServer:
    """A server at the extended level."""
    return serve(api_level="extended")


def chat(server: LiveServer, *messages: object, **fields: object) -> Any:
    return server.post(CHAT, {"messages": [USER, *messages], **fields})


def respond(server: LiveServer, *items: object, **fields: object) -> Any:
    return server.post(RESPONSES, {"input": [USER, *items], **fields})


PARTS = [
    (IMAGE, "image"),
    ({"type": "input_image", "image_url": "data:"}, "image"),
    ({"type": "image", "data": "xx", "mimeType": "image/png"}, "image"),
    ({"type": "input_audio", "input_audio": {"data": "xx", "format": "wav"}}, "audio"),
    ({"type": "audio", "data": "xx", "mimeType": "audio/wav"}, "audio"),
    ({"type": "input_file", "file_id": "f"}, "file"),
    ({"type": "file", "file": {"file_data": "xx"}}, "file"),
    ({"type": "resource", "resource": {"uri": "x", "blob": "xx"}}, "file"),
    ({"type": "video_url", "video_url": {"url": "x"}}, "video"),
]


@pytest.mark.parametrize(("part", "kind"), PARTS)
def test_media_are_replaced_by_a_few_words(
    strict: LiveServer, open_one: LiveServer, part: Any, kind: str
) -> None:
    """In a user's message and in a tool's result, on both routes; at the reference level the refusal says how."""
    result = {"role": "tool", "tool_call_id": "c", "content": [part]}
    output = {"type": "function_call_output", "call_id": "c", "output": [part]}
    user = {"role": "user", "content": [SPOKEN, part]}
    for send, extra in ((chat, result), (respond, output)):
        refused = send(strict, user)
        assert (refused.status, SETTING in refused.error["message"]) == (400, True)
        assert send(strict, extra).status == 400
        answer = send(open_one, user, extra)
        place = "messages" if send is chat else "input"
        assert (answer.status, answer.headers["X-Maple-Ignored"]) == (200, f"{place}[].{kind}")
        assert open_one.prompt().count(OMITTED.format(kind)) == 2


def test_a_question_of_nothing_but_a_picture_is_refused(open_one: LiveServer) -> None:
    """It was just asked and cannot be answered; further back in the history it is no matter."""
    picture = {"role": "user", "content": [IMAGE]}
    assert chat(open_one, picture).error["param"] == "messages[1].content"
    assert respond(open_one, picture).error["param"] == "input"
    said = {"role": "assistant", "content": "a"}
    assert chat(open_one, picture, said, USER).status == respond(open_one, picture, said, USER).status == 200


@pytest.mark.parametrize(
    ("part", "content", "reasoning"),
    [
        ({"type": "refusal", "refusal": "wombat"}, "wombat", None),
        ({"type": "output_text", "text": "wombat"}, "wombat", None),
        ({"type": "input_text", "text": "wombat"}, "wombat", None),
        ({"type": "thinking", "thinking": "wombat", "signature": "x"}, "", "wombat"),
        ({"type": "redacted_thinking", "data": "wombat"}, "", None),
    ],
)
@pytest.mark.parametrize("level", ["reference", "extended"])
def test_parts_of_an_assistant_are_read(
    serve: Serve, level: str, part: Any, content: str, reasoning: str | None
) -> None:
    """At both levels: text, thinking that goes back as reasoning, and what is sealed from everyone."""
    server = serve(api_level=level)
    answer = chat(server, {"role": "assistant", "content": [part]})
    assert answer.status == 200
    rendered = server.prompt()
    assert ("wombat" in rendered) is bool(content or reasoning)
    if reasoning:
        assert "<think>\nwombat\n</think>" in rendered
    assert answer.headers["X-Maple-Ignored"] == (
        "messages[].redacted_thinking" if part["type"] == "redacted_thinking" else None
    )


def called(arguments: object) -> dict[str, object]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}],
    }


@pytest.mark.parametrize("arguments", ["", " ", "\n", "null", " null ", None])
@pytest.mark.parametrize("level", ["reference", "extended"])
def test_blank_arguments_are_none(serve: Serve, level: str, arguments: object) -> None:
    """At both levels, on both routes."""
    server = serve(api_level=level)
    assert chat(server, called(arguments)).status == 200
    assert '{"name": "f", "arguments": {}}' in server.prompt()
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    assert respond(server, item).status == 200
    assert '{"name": "f", "arguments": {}}' in server.prompt()


@pytest.mark.parametrize("arguments", ['{"cmd": "ls', "[1]", "5", "{'a': 1}", '```json\n{"a": 1}\n```', "ls"])
def test_other_arguments_are_a_string(strict: LiveServer, open_one: LiveServer, arguments: str) -> None:
    """A model wrote them, and the client cannot take them back; at the reference level the refusal says how."""
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    for send, message in ((chat, called(arguments)), (respond, item)):
        assert SETTING in send(strict, message).error["message"]
        assert send(open_one, message).status == 200
        assert f'{{"name": "f", "arguments": {json.dumps(arguments)}}}' in open_one.prompt()


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
        {"type": "tool_search_call", "id": "x"},
        {"type": "tool_search_output", "id": "x", "tools": []},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "mcp_list_tools", "id": "x", "tools": []},
        {"type": "mcp_call", "id": "x"},
        {"type": "image_generation_call", "id": "x", "result": "xx"},
    ],
)
@pytest.mark.parametrize("level", ["reference", "extended"])
def test_items_of_the_vendors_own_are_dropped(serve: Serve, level: str, item: Any) -> None:
    """At both levels, with a word."""
    answer = respond(serve(api_level=level), item)
    assert (answer.status, answer.headers["X-Maple-Ignored"]) == (200, f"input[].{item['type']}")


def test_items_that_nobody_knows_yet_go_by_the_level(strict: LiveServer, open_one: LiveServer) -> None:
    """Refused with a word about the setting, or dropped."""
    item = {"type": "next_years_item"}
    refused = respond(strict, item)
    assert (refused.error["param"], SETTING in refused.error["message"]) == ("input[1].type", True)
    assert respond(open_one, item).headers["X-Maple-Ignored"] == "input[].next_years_item"


@pytest.mark.parametrize("level", ["reference", "extended"])
def test_calls_of_other_kinds_come_back_as_calls(serve: Serve, level: str) -> None:
    """A custom tool's, a shell's, and what another agent said."""
    server = serve(api_level=level)
    items = [
        {"type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "patched"},
        {
            "type": "local_shell_call",
            "call_id": "2",
            "action": {"type": "exec", "command": ["ls"], "env": {}},
        },
        {"type": "local_shell_call_output", "id": "2", "output": "numbat"},
        {"type": "agent_message", "content": [{"type": "input_text", "text": "quokka"}]},
    ]
    assert respond(server, *items).status == 200
    rendered = server.prompt()
    for words in (
        '{"name": "patch", "arguments": {"input": "*** Begin"}}',
        '{"name": "local_shell", "arguments": {"command": ["ls"]}}',
        "patched",
        "numbat",
        "<|im_start|>user\nquokka<|im_end|>",
    ):
        assert rendered.count(words) == 1


KEPT = Recording(match="wombat", pieces=("</think>", "numbat"))


@pytest.mark.parametrize("reference", [{"type": "item_reference"}, {}])
def test_references_are_resolved_from_what_is_kept(serve: Serve, reference: dict[str, str]) -> None:
    """In memory at the extended level, for the key that made them; the type may be missing."""
    server = serve(KEPT, Recording(pieces=("ok",)), api_level="extended")
    kept = server.post(RESPONSES, {"input": "wombat"}).json
    item = {**reference, "id": kept["output"][0]["id"]}
    assert respond(server, item).status == 200
    assert server.prompt().count("numbat") == 1
    chained = server.post(RESPONSES, {"input": "on", "previous_response_id": kept["id"]})
    assert chained.status == 200
    assert server.prompt().count("wombat") == server.prompt().count("numbat") == 1


@pytest.mark.parametrize("level", ["reference", "extended"])
@pytest.mark.parametrize("wanted", ["msg_nothing", f"msg_{'0' * 32}0000"])
def test_a_reference_to_what_is_gone_is_404(serve: Serve, level: str, wanted: str) -> None:
    """Item with id … not found: nothing else can be said."""
    answer = respond(serve(api_level=level), {"type": "item_reference", "id": wanted})
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert answer.error["message"] == f"Item with id '{wanted}' not found"


def test_what_is_kept_in_memory_is_the_keys_own(serve: Serve, tmp_path: Any) -> None:
    """And gone with the server: nothing is written."""
    keys = tmp_path / "keys"
    keys.write_text("a:one\nb:two\n")
    keys.chmod(0o600)
    server = serve(KEPT, api_level="extended", api_key_file=keys)
    mine, other = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
    kept = server.post(RESPONSES, {"input": "wombat"}, mine).json
    body = {"input": "wombat", "previous_response_id": kept["id"]}
    assert server.post(RESPONSES, body, mine).status == 200
    assert server.post(RESPONSES, body, other).status == 404
