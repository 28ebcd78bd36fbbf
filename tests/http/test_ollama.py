"""Ollama's api: its official client, and what that does not send."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ollama
import pytest
from maple_protocols.adapter import Policy, ServedModel
from maple_protocols.dialect import Call
from maple_protocols.ollama.adapter import OllamaChat, OllamaGenerate, OllamaRoutes

from maple.http.services import Limits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.http.conftest import LiveServer, Serve

    Connect = Callable[[LiveServer], ollama.Client]

OWN = (OllamaChat(), OllamaGenerate(), OllamaRoutes())
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def connect() -> Iterator[Connect]:
    """The official client of a server."""
    with contextlib.ExitStack() as stack:
        yield lambda server: stack.enter_context(ollama.Client(f"http://127.0.0.1:{server.port}"))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_official_client_chats(serve: Serve, connect: Connect, size: int) -> None:
    """Text, thinking and calls, streamed and whole, are the same answer however the model's text is cut."""
    text = f"Hm.</think>\n\nLook{CALL}"
    server = serve(
        Recording(pieces=tuple(text[at : at + size] for at in range(0, len(text), size))), adapters=OWN
    )
    client = connect(server)
    whole = client.chat("maple-preview:latest", [USER], tools=[TOOL])
    pieces = list(client.chat("maple-preview:latest", [USER], tools=[TOOL], stream=True))
    assert whole.message.content == "".join(piece.message.content or "" for piece in pieces) == "Look"
    assert whole.message.thinking == "".join(piece.message.thinking or "" for piece in pieces) == "Hm."
    calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [("read", {"path": "a.txt"})]
    assert whole.message.tool_calls == calls
    assert (whole.model, whole.done_reason) == ("maple-preview:latest", "stop")
    assert (whole.eval_count or 0) > 0


def test_the_official_client_generates_and_looks_around(serve: Serve, connect: Connect) -> None:
    """Options reach the engine; list, show and ps tell of the one model."""
    server = serve(Recording(pieces=("Hm.</think>", "one two three")), adapters=OWN, model_aliases=("other",))
    client = connect(server)
    found = client.generate("m", "hi", system="S-1", options={"stop": ["two"], "num_predict": 9, "top_k": -1})
    assert (found.response, found.thinking) == ("one ", "Hm.")
    assert "S-1" in server.prompt()
    assert (
        "".join(piece.response or "" for piece in client.generate("m", "hi", stream=True)) == "one two three"
    )
    assert client.generate("m", "raw text", raw=True, options={"num_predict": -1}).response.endswith("three")
    assert [card.model for card in client.list().models] == ["maple-preview:latest", "other:latest"]
    assert client.show("maple-preview").capabilities == ["completion", "tools", "thinking"]
    assert [card.context_length for card in client.ps().models] == [
        server.services.served_model.max_model_len
    ]
    for refused in (lambda: client.pull("x"), lambda: client.embed("x", "y"), lambda: client.delete("x")):
        with pytest.raises(ollama.ResponseError, match="is not served") as caught:
            refused()
        assert caught.value.status_code == 501


def test_what_is_sent_reaches_the_model(serve: Serve) -> None:
    """History with calls and thinking; images are replaced; formats, efforts and options without effect."""
    server = serve(Recording(pieces=("</think>ok",)), adapters=OWN)
    messages = [
        {**USER, "images": ["AAAA"]},
        {
            "role": "assistant",
            "thinking": "T-1",
            "tool_calls": [{"function": {"name": "read", "arguments": {}}}],
        },
        {"role": "tool", "tool_name": "read", "content": "R-1"},
    ]
    sent = {"model": "m", "messages": messages, "options": {"num_ctx": 1}, "stream": False, "format": ""}
    answer = server.post("/api/chat", json.dumps(sent).encode(), {"Content-Type": "text/plain"})
    assert answer.json["message"]["content"] == "ok"
    assert "[image omitted" in server.prompt()
    assert "R-1" in server.prompt()
    assert set(answer.headers["X-Maple-Ignored"].split(",")) == {"messages[].images", "options.num_ctx"}


@pytest.mark.parametrize(("form", "kind"), [("json", "object"), ({"type": "object"}, "schema"), ("", None)])
def test_formats_and_efforts_are_asked_for(form: Any, kind: str | None) -> None:
    """A word or a schema is a form; an effort is thinking."""
    from maple_protocols.ask import Conversation

    body = {"model": "m", "messages": [USER], "format": form, "think": "low"}
    ask = OllamaChat().structure(body, Policy())
    assert (ask.form and ask.form.kind, ask.effort) == (kind, "low")
    assert isinstance(ask.prompt, Conversation)
    assert ask.prompt.thinking is True


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/chat", {"model": "m", "messages": []}, 400),
        ("/api/chat", {"model": "m", "messages": [USER], "think": 1}, 400),
        ("/api/chat", {"model": "m", "messages": [USER], "format": 1}, 400),
        ("/api/generate", {"model": "m"}, 400),
        ("/api/chat", {"model": "other", "messages": [USER]}, 404),
        ("/api/show", {"model": "other"}, 404),
        ("/api/show", {}, 400),
        ("/api/tags", {}, 405),
    ],
)
def test_refusals_have_ollamas_shape(serve: Serve, path: str, body: Any, status: int) -> None:
    """One sentence under ``error``."""
    answer = serve(adapters=OWN, strict_model=True).post(path, body)
    assert (answer.status, list(answer.json)) == (status, ["error"])


def test_silence_and_failures_are_lines(serve: Serve) -> None:
    """A line of no text after a while; a failure is the last line; a short answer says so."""
    slow = Recording(pieces=("</think>", "a", "b"), delay_ms=150)
    server = serve(slow, adapters=OWN, limits=Limits(ping_seconds=0.03))
    sent = {"model": "m", "messages": [USER], "options": {"num_predict": 2}}
    lines = [json.loads(line) for line in server.post("/api/chat", sent).body.splitlines()]
    assert any(line["message"] == {"role": "assistant", "content": ""} for line in lines[:-1])
    assert lines[-1]["done_reason"] == "length"
    broken = serve(Recording(pieces=("</think>", "a"), finish="error"), adapters=OWN)
    assert list(json.loads(broken.post("/api/chat", sent | {"options": {}}).body.splitlines()[-1])) == [
        "error"
    ]


def test_the_server_greets_and_tells_its_version(serve: Serve) -> None:
    """As Ollama does."""
    server = serve(adapters=OWN, loaded=False)
    assert server.get("/").body == b"Ollama is running"
    assert server.get("/api/version").json["version"].count(".") == 2
    assert server.get("/api/ps").json == {"models": []}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (7_200_000, "7.2M"), (1_500, "1.5K"), (20_240_000_000, "20.2B")],
)
def test_weights_are_counted_in_short(count: int, text: str) -> None:
    """As Ollama writes them."""
    served = ServedModel(id="m", created=0, max_model_len=9, strict=False, parameters=count)
    call = Call(
        method="GET", pattern="/api/tags", wanted=None, query={}, body={}, served=served, policy=Policy()
    )
    body: Any = OllamaRoutes().reply(call).body
    assert body["models"][0]["details"]["parameter_size"] == text
