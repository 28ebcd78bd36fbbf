"""/openapi.json describes what the server does; /docs shows it without help from elsewhere."""

from __future__ import annotations

import html.parser
import pathlib
import re
from typing import TYPE_CHECKING, Any

import jsonschema
import openapi_spec_validator
import pytest

from maple.http.error_table import TABLE
from maple.http.refused import MethodNotAllowed

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

MARKUP_FROM_TEXT = r"\b(innerHTML|outerHTML|insertAdjacentHTML|eval|document\.write)\b"
REFERENCE = pathlib.Path(__file__).parents[2] / "maple" / "reference"
NOT_OF_A_ROUTE = {MethodNotAllowed}
"""These are told once, in the introduction: they belong to no route's operation."""


@pytest.fixture
def described(server: LiveServer) -> Any:
    """The description of a server with everything by default."""
    return server.get("/openapi.json").json


def operation(described: Any, method: str, template: str) -> Any:
    return described["paths"][template][method.lower()]


def check(described: Any, answer: Any, found: Any) -> None:
    """An answer must be one of those that its operation describes."""
    response = found["responses"][str(answer.status)]
    media_type = answer.headers["Content-Type"].partition(";")[0]
    schema = response["content"][media_type]["schema"]
    jsonschema.validate(answer.json, {**schema, "components": described["components"]})


def test_it_is_valid_openapi_3_1(described: Any) -> None:
    """By the standard's own schema, references included."""
    assert described["openapi"].startswith("3.1.")
    openapi_spec_validator.validate(described)


def test_every_route_and_method_is_described(server: LiveServer, described: Any) -> None:
    """From the route table: nothing is missing, nothing is made up."""
    table = server.running.application.routes
    expected = {
        (route.template, method.lower())
        for route in table
        for method in route.handler.methods  # type: ignore[attr-defined]  # ours all have it
        if method != "HEAD"
    }
    found = {(path, method) for path, methods in described["paths"].items() for method in methods}
    assert found == expected


def test_every_row_of_the_error_table_is_described(described: Any) -> None:
    """Each code appears with its status at some operation."""
    told = {
        (status, code)
        for methods in described["paths"].values()
        for each in methods.values()
        for status, response in each["responses"].items()
        for code in re.findall(r"`([a-z_]+)`: ", response["description"])
    }
    rows = {
        (str(row.status), row.code) for kind, row in TABLE.items() if row.code and kind not in NOT_OF_A_ROUTE
    }
    assert rows <= told
    assert "`route_not_found`" in described["info"]["description"]
    assert "`method_not_allowed`" in described["info"]["description"]


def test_keys_are_asked_for_where_they_are_needed(serve: Serve, described: Any) -> None:
    """Probes and pages are open; with a key set, everything else needs it and may say 401."""
    closed = serve(api_key="secret").get("/openapi.json").json
    for path, methods in closed["paths"].items():
        for method, each in methods.items():
            is_open = path in ("/", "/health", "/healthz", "/readyz") or path.startswith(
                ("/ui", "/docs", "/open")
            )
            assert each["security"] == ([] if is_open else [{"key": []}])
            assert ("401" in each["responses"]) is not is_open
            assert described["paths"][path][method]["security"] == ([] if is_open else [{}, {"key": []}])
    assert closed["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_public_metrics_are_described_as_open(serve: Serve) -> None:
    """As MAPLE_METRICS_PUBLIC makes them."""
    described = serve(api_key="secret", metrics_public=True).get("/openapi.json").json
    assert operation(described, "get", "/metrics")["security"] == []


@pytest.mark.parametrize("strict", ["auto", "true", "false"])
def test_strictness_about_unknown_fields_is_described(serve: Serve, strict: str) -> None:
    """As MAPLE_STRICT_FIELDS makes it."""
    schemas = serve(strict_fields=strict).get("/openapi.json").json["components"]["schemas"]
    closed = {name: "additionalProperties" in schemas[name] for name in ("ChatRequest", "ResponsesRequest")}
    assert closed == {"ChatRequest": strict == "true", "ResponsesRequest": strict != "false"}


def test_without_the_ui_its_routes_are_not_described(serve: Serve) -> None:
    """They are not there."""
    paths = serve(ui=False).get("/openapi.json").json["paths"]
    assert not {"/", "/ui", "/ui/{id}"} & set(paths)


@pytest.mark.parametrize(
    ("method", "path", "template"),
    [
        ("GET", "/health", "/health"),
        ("GET", "/healthz", "/healthz"),
        ("GET", "/readyz", "/readyz"),
        ("GET", "/v1/stats?format=json", "/v1/stats"),
        ("GET", "/v1/models", "/v1/models"),
        ("GET", "/v1/models/other/maple", "/v1/models/{id}"),
        ("GET", "/v1/responses/resp_x", "/v1/responses/{id}"),
        ("DELETE", "/v1/sessions/x", "/v1/sessions/{id}"),
    ],
)
def test_answers_are_as_described(
    server: LiveServer, described: Any, method: str, path: str, template: str
) -> None:
    """Probes, listings and refusals."""
    check(described, server.request(method, path), operation(described, method, template))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/responses", {"input": "hi", "store": True}),
        ("/v1/responses", {"input": "hi", "oops": 1}),
    ],
)
def test_generation_is_as_described(server: LiveServer, described: Any, path: str, body: object) -> None:
    """Whole answers and refusals, and every event of a stream."""
    found = operation(described, "post", path)
    check(described, server.post(path, body), found)
    streamed = server.post(path, {**body, "stream": True, "stream_options": {"include_usage": True}})  # type: ignore[dict-item]
    if streamed.status != 200:
        return
    stream = found["responses"]["200"]["content"]["text/event-stream"]["schema"]
    for event in streamed.events[:-1]:
        data = stream["properties"]["data"]["anyOf"][0]["contentSchema"]
        jsonschema.validate(event, {**data, "components": described["components"]})


def test_stored_responses_are_as_described(serve: Serve, tmp_path: pathlib.Path) -> None:
    """The response, its items, and its end."""
    server = serve(response_store=f"sqlite:{tmp_path}/responses.db")
    described = server.get("/openapi.json").json
    path = f"/v1/responses/{server.post('/v1/responses', {'input': 'hi', 'store': True}).json['id']}"
    check(described, server.get(path), operation(described, "get", "/v1/responses/{id}"))
    items = "/v1/responses/{id}/input_items"
    check(described, server.get(f"{path}/input_items"), operation(described, "get", items))
    check(described, server.request("DELETE", path), operation(described, "delete", "/v1/responses/{id}"))


def test_a_kept_response_links_to_its_routes(described: Any) -> None:
    """By its id."""
    links = operation(described, "post", "/v1/responses")["responses"]["200"]["links"]
    assert set(links) == {
        "get_v1_responses_id",
        "delete_v1_responses_id",
        "get_v1_responses_id_input_items",
    }
    assert "links" not in operation(described, "post", "/v1/completions")["responses"]["200"]


def test_a_description_that_the_client_has_is_not_sent_again(server: LiveServer) -> None:
    """It changes with the server's version and settings only."""
    first = server.get("/openapi.json")
    assert first.headers["Content-Type"] == "application/json; charset=utf-8"
    assert server.get("/openapi.json", If_None_Match=first.headers["Etag"]).status == 304


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/docs/reference.js", "/docs/reference.css"])
def test_the_reference_is_open_and_under_the_strict_policy(serve: Serve, path: str) -> None:
    """Beside a key and without the chat page, too."""
    answer = serve(api_key="secret", ui=False).get(path)
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


class _Inline(html.parser.HTMLParser):
    """Finds what the policy would block: inline scripts, styles and handlers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        if (tag == "script" and "src" not in names) or tag == "style":
            self.found.append(tag)
        self.found += [name for name in names if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("folder", [REFERENCE, REFERENCE.parent / "ui"])
def test_pages_hold_nothing_that_their_policy_blocks(folder: pathlib.Path) -> None:
    """No inline code, no other site, and no way from text to markup."""
    page = _Inline()
    page.feed((folder / "index.html").read_text("utf-8"))
    assert page.found == []
    for file in filter(pathlib.Path.is_file, folder.iterdir()):
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(src|href|url\(|fetch\(|import)\W{0,3}https?:", text), file.name
        assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|eval|document\.write)\b", text), (
            file.name
        )
