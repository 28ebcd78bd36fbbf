"""POST /tokenize, /detokenize, /apply-template: a prompt as the server reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from maple_testing.wire import chat_body

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

TALK = [{"role": "user", "content": "Wie geht's? <|im_end|> a < b"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    "shape", [{}, {"tools": TOOLS}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
def test_the_tokens_of_messages_are_those_that_an_answer_would_be_made_from(
    server: LiveServer, shape: dict[str, Any]
) -> None:
    """The ids that the engine was given, their number, and the window."""
    server.post("/v1/chat/completions", {"messages": TALK, **shape})
    found = server.post("/tokenize", {"messages": TALK, **shape}).json
    assert tuple(found["tokens"]) == server.engine.last_prompt
    served = server.engine.served
    assert served is not None
    assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), served.max_model_len)
    assert "token_strs" not in found


@pytest.mark.parametrize("name", ["prompt", "content"])
def test_a_prompt_is_raw_under_both_names_and_comes_back_whole(server: LiveServer, name: str) -> None:
    """Control strings are control tokens there, as on /v1/completions; detokenised, under both names too."""
    text = "<|im_start|>user\nHallo, Welt 🌍<|im_end|>"
    server.post("/v1/completions", {"prompt": text})
    ids = server.post("/tokenize", {name: text}).json["tokens"]
    assert tuple(ids) == server.engine.last_prompt
    assert server.post("/detokenize", {"tokens": ids}).json == {"prompt": text, "content": text}


def test_tokens_are_spelt_as_vllm_and_as_llama_server_spell_them(server: LiveServer) -> None:
    """The vocabulary's own strings; pieces of text, or bytes where a character is cut."""
    plain = server.post("/tokenize", {"prompt": " x🌍", "return_token_strs": True}).json
    assert plain["token_strs"][:2] == ["Ġ", "x"]
    assert all(isinstance(one, int) for one in plain["tokens"])
    pieces = server.post("/tokenize", {"content": " x🌍", "with_pieces": True}).json["tokens"]
    assert [one["id"] for one in pieces] == plain["tokens"]
    raw = b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in (one["piece"] for one in pieces))
    assert raw.decode() == " x🌍"
    assert any(isinstance(one["piece"], list) for one in pieces)


def test_a_rendered_conversation_is_readable_and_safe_to_send_back(server: LiveServer) -> None:
    """Exact but for the control string that a client wrote: sent as a raw prompt, no token of it is one."""
    prompt = server.post("/apply-template", {"messages": TALK}).json["prompt"]
    assert "<|im_start|>user\nWie geht's? <\N{REPLACEMENT CHARACTER}|im_end|> a < b<|im_end|>" in prompt
    plain = chat_body("a < b, c > d")["messages"]
    text = server.post("/apply-template", {"messages": plain}).json["prompt"]
    ids = [server.post("/tokenize", body).json["tokens"] for body in ({"prompt": text}, {"messages": plain})]
    assert ids[0] == ids[1]


def test_what_an_answer_begins_with_can_be_left_out(server: LiveServer) -> None:
    """add_generation_prompt false, on all routes that take messages."""
    whole, bare = (
        server.post("/apply-template", {"messages": TALK, "add_generation_prompt": begun}).json["prompt"]
        for begun in (True, False)
    )
    assert bare.endswith("<|im_end|>\n")
    assert whole == f"{bare}<|im_start|>assistant\n<think>\n"
    server.post("/v1/chat/completions", {"messages": TALK, "add_generation_prompt": False})
    assert server.prompt().endswith("<|im_end|>\n")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": TALK}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": [{"role": "pilot", "content": "a"}]}, "messages[0].role"),
        ("/tokenize", {"messages": TALK, "temperature": "hot"}, "temperature"),
        ("/tokenize", {"prompt": "a", "with_pieces": 1}, "with_pieces"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1 << 40]}, "tokens"),
        ("/apply-template", {"prompt": "a"}, "messages"),
    ],
)
def test_a_wrong_field_is_named(server: LiveServer, path: str, body: object, param: str) -> None:
    """By its path, as on chat."""
    answer = server.post(path, body)
    assert (answer.status, answer.error["param"]) == (400, param)


def test_unknown_fields_prompts_and_keys_are_as_on_chat(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ignored and told, refused where the server is strict, too long, or without the key."""
    server = serve(max_prompt_tokens=8)
    told = server.post("/tokenize", {"prompt": "a", "colour": 1})
    assert (told.status, told.headers["X-Maple-Ignored"]) == (200, "colour")
    long: list[tuple[str, dict[str, object]]] = [
        ("/tokenize", {"prompt": "a b " * 40}),
        ("/detokenize", {"tokens": [1] * 9}),
    ]
    for path, body in long:
        assert server.post(path, body).error["code"] == "context_length_exceeded"
    strict = serve(strict_fields="true")
    unknown: list[dict[str, object]] = [{"prompt": "a", "colour": 1}, {"messages": TALK, "colour": 1}]
    for body in unknown:
        assert strict.post("/tokenize", body).error["param"] == "colour"
    locked = serve(api_key="secret-key-of-this-test")
    for path in ("/tokenize", "/detokenize", "/apply-template"):
        assert locked.post(path, {}).status == 401
