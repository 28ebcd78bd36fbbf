"""What a protocol may say about HTTP: lines for a stream, its own errors and headers, routes of all methods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import attrs
import pytest
from maple_plugins.events import ContentDelta
from maple_protocols.adapter import Frame, JsonObject
from maple_protocols.ask import Ask, Conversation, Message
from maple_protocols.dialect import Call, Failure, Reply
from maple_protocols.rules import Doc, Length
from maple_protocols.strict import structure

from maple.http.services import Limits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from maple_protocols.timings import Progress

    from tests.http.conftest import Serve


@attrs.frozen(kw_only=True)
class Line:
    """The body of POST /line."""

    text: Annotated[str, Length(least=1), Doc("What to answer.")]


class Dialect:
    """Errors and headers as another protocol has them."""

    greeting: ClassVar[str] = "lines are served"
    any_content_type: ClassVar[bool] = True

    def headers(self, request_id: str) -> Mapping[str, str]:
        return {"X-Line": request_id}

    def refusal(self, failure: Failure) -> Reply:
        return Reply(status=failure.status, body={"no": failure.error.message}, headers=failure.headers)


class LineAdapter(Dialect):
    """Lines of JSON."""

    path = "/line"
    prompt_param = "text"
    request = Line
    closed = True
    framing = "ndjson"

    def structure(self, body: Mapping[str, object], policy: Any) -> Ask:
        found = structure(Line, body, refuse_unknown=True)
        return Ask(prompt=Conversation(messages=(Message(role="user", content=found.text),)), stream=True)

    def encoder(self, ask: Ask, identity: Any) -> Lines:
        return Lines()

    def fold(self, ask: Ask, identity: Any) -> Any:
        raise NotImplementedError


class Lines:
    """A line an event."""

    def opening(self) -> tuple[Frame, ...]:
        return ()

    def started(self, progress: Progress) -> tuple[Frame, ...]:
        return (Frame(data={"prompt": progress.total}),)

    def ping(self, progress: Progress) -> tuple[Frame, ...]:
        return (Frame(data={"state": progress.state}),)

    def event(self, event: object) -> tuple[Frame, ...]:
        return (Frame(data={"text": event.text}),) if isinstance(event, ContentDelta) else ()

    def failure(self, error: Any) -> tuple[Frame, ...]:
        return (Frame(data={"no": error.message}),)

    def closing(self) -> tuple[Frame, ...]:
        return ()


class EchoAdapter(Dialect):
    """What it was called with."""

    routes: ClassVar[Mapping[str, tuple[str, ...]]] = {"/echo": ("GET", "POST"), "/echo/(.+)": ("GET",)}

    def reply(self, call: Call) -> Reply:
        told: JsonObject = {"method": call.method, "wanted": call.wanted, "body": call.body}
        return Reply(status=201, body={**told, "query": call.query, "version": call.served.version})


OWN = (LineAdapter(), EchoAdapter())


def test_a_stream_may_be_lines(serve: Serve) -> None:
    """Under its media type; a body may come without one; silence is broken by the protocol's own lines."""
    slow = Recording(pieces=("</think>", "a", "b"), delay_ms=150)
    server = serve(slow, adapters=OWN, limits=Limits(ping_seconds=0.03))
    answer = server.post("/line", {"text": "hi"}, {"Content-Type": "text/plain"})
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert [line["text"] for line in lines if "text" in line] == ["a", "b"]
    assert sum("prompt" in line for line in lines) == 1
    assert any("state" in line for line in lines)


def test_every_refusal_has_the_protocols_shape(serve: Serve) -> None:
    """With its headers; those of other routes stay as they are."""
    server = serve(adapters=OWN, api_key="k")
    key = {"Authorization": "Bearer k"}
    found = [
        server.post("/line", {"text": "hi"}),
        server.request("PUT", "/line", headers=key),
        server.post("/line", {"text": ""}, key),
        server.post("/line", b"{", key),
    ]
    assert [each.status for each in found] == [401, 405, 400, 400]
    for each in found:
        assert set(each.json) == {"no"}
        assert each.headers["X-Line"] == each.headers["X-Request-Id"]
    plain = server.post("/v1/completions", {}, key)
    assert (set(plain.json), "X-Line" in plain.headers) == ({"error"}, False)


def test_routes_that_do_not_generate(serve: Serve) -> None:
    """Any of the methods, with query, group and body; before the model is loaded, too."""
    server = serve(adapters=OWN, loaded=False)
    got = server.get("/echo/a%20b?x=1&x=2")
    assert (got.status, got.json["wanted"], got.json["query"]) == (201, "a b", {"x": "2"})
    sent = server.post("/echo", {"a": 1}).json
    assert (sent["method"], sent["body"], sent["version"]) == ("POST", {"a": 1}, "1.2.3")
    assert server.post("/echo", None).json["body"] == {}
    assert server.request("HEAD", "/echo").status == 201
    paths = server.get("/openapi.json").json["paths"]
    assert set(paths["/echo"]) == {"get", "post"}


@pytest.mark.parametrize(("accept", "status"), [("text/html", 302), ("*/*", 200)])
def test_a_greeting_is_for_programs(serve: Serve, accept: str, status: int) -> None:
    """Browsers are led to the page."""
    answer = serve(adapters=OWN).get("/", Accept=accept)
    assert answer.status == status
    assert status == 302 or answer.body == b"lines are served"


def test_without_the_page_everyone_is_greeted(serve: Serve) -> None:
    """There is nothing to lead to."""
    assert serve(adapters=OWN, ui=False).get("/", Accept="text/html").body == b"lines are served"
