"""docs/api.md is the server's own description in words, and that description leaves nothing out."""

from __future__ import annotations

import importlib.util
import pathlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from maple.http.error_table import TABLE
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")

SAMPLING = "temperature top_p top_k repetition_penalty seed stop presence_penalty frequency_penalty"
COMMON = f"model stream stream_options include_reasoning session_id user {SAMPLING}"
MESSAGE = (
    "messages[system/developer].content messages[user].content messages[assistant].content "
    "messages[assistant].reasoning_content messages[assistant].reasoning "
    "messages[assistant].tool_calls[].function.name messages[assistant].tool_calls[].function.arguments "
    "messages[tool].content messages[tool].tool_call_id"
)
USAGE = (
    "usage.prompt_tokens usage.completion_tokens usage.total_tokens usage.prompt_tokens_details.cached_tokens "
    "usage.completion_tokens_details.reasoning_tokens"
)
PROMISED = {
    "POST /v1/chat/completions": f"{COMMON} {MESSAGE} {USAGE} messages tools tools[].function.name "
    "tools[].function.description tools[].function.parameters tool_choice max_completion_tokens max_tokens "
    "stream_options.include_usage chat_template_kwargs chat_template_kwargs.enable_thinking metadata store "
    "service_tier parallel_tool_calls reasoning_effort verbosity prompt_cache_key safety_identifier logit_bias "
    "modalities top_logprobs n logprobs response_format id object created choices choices[].index "
    "choices[].finish_reason choices[].message.content choices[].message.reasoning_content "
    "choices[].message.tool_calls",
    "POST /v1/completions": f"{SAMPLING} model prompt stream stream_options max_tokens max_completion_tokens "
    f"session_id user echo suffix logprobs n best_of choices[].text choices[].finish_reason {USAGE}",
    "POST /v1/responses": f"{COMMON} input instructions max_output_tokens tools tool_choice parallel_tool_calls "
    "reasoning text metadata chat_template_kwargs include truncation prompt_cache_key prompt_cache_retention "
    "safety_identifier service_tier background store previous_response_id id object created_at status "
    "incomplete_details error output output_text usage usage.input_tokens_details.cached_tokens "
    "usage.output_tokens_details.reasoning_tokens",
    "POST /v1/messages": "model max_tokens messages system tools tool_choice thinking output_config stop_sequences "
    "temperature top_p top_k metadata stream",
    "POST /v1/messages/count_tokens": "",
    "POST /v1/chat/completions/input_tokens": "object input_tokens",
    "POST /v1/chat/completions/{id}/answer": "id object answered",
    "POST /v1/responses/input_tokens": "",
    "GET /v1/responses/{id}": "",
    "DELETE /v1/responses/{id}": "id object deleted",
    "GET /v1/responses/{id}/input_items": "data",
    "POST /v1/sessions/{id}/save": "version session_id model kv_format tokens bytes sha256 created_at",
    "POST /v1/sessions/{id}/load": "session_id tokens bytes load_ms",
    "GET /v1/sessions/{id}/manifest": "",
    "DELETE /v1/sessions/{id}": "id object deleted",
    "GET /v1/models": "data[].id data[].object data[].created data[].owned_by data[].max_model_len",
    "GET /v1/models/{id}": "id object created owned_by max_model_len",
    "POST /tokenize": "prompt messages content return_token_strs with_pieces tokens count max_model_len token_strs",
    "POST /detokenize": "tokens prompt content",
    "POST /apply-template": "prompt",
    "GET /v1/slots": "data data[].id data[].state data[].age_s data[].prompt.total data[].prompt.cached "
    "data[].prompt.processed data[].generated data[].tokens_per_second",
    "GET /slots": "",
    "GET /props": "total_slots chat_template",
    "GET /version": "version",
    "POST /v1/embeddings": "",
    "GET /health": "status error model_path",
    "GET /healthz": "status service",
    "GET /readyz": "status service model model_path version",
    "GET /v1/stats": "running waiting cancelled",
    "GET /metrics": "",
    "GET /openapi.json": "",
    "GET /docs": "",
    "GET /docs/{id}": "",
    "GET /": "",
    "GET /ui": "",
    "GET /ui/{id}": "",
}
"""Route → the fields that the contract names for it, written down by hand and not taken from the code. Empty: no fields
of its own, or those of another route."""


def sections() -> dict[str, str]:
    """Route → what the page says of it."""
    parts = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: re.split(r"^## ", part, flags=re.MULTILINE)[0] for part in parts}


def fields(section: str) -> set[str]:
    """The fields in the tables of a section."""
    return set(re.findall(r"^\| `([^` ]+)`", section, flags=re.MULTILINE))


def described(server: LiveServer) -> Any:
    return server.get("/openapi.json").json


def test_the_page_is_what_the_server_says(server: LiveServer) -> None:
    """docs/api.md is what tools/api_page.py makes of /openapi.json."""
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "tools" / "api_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page(described(server)) == PAGE


def test_every_route_is_on_the_page(server: LiveServer) -> None:
    """As many as the route table has, and those that the contract names."""
    paths = described(server)["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert set(sections()) == routes == set(PROMISED)


@pytest.mark.parametrize("route", PROMISED)
def test_every_promised_field_is_on_the_page(route: str) -> None:
    """Those of requests and of answers."""
    assert set(PROMISED[route].split()) - fields(sections()[route]) == set()


def test_every_request_field_is_on_the_page(server: LiveServer) -> None:
    """No field that is validated goes untold."""
    document = described(server)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        assert set(schema["properties"]) - fields(sections()[f"POST {path}"]) == set()


@pytest.mark.parametrize("route", ["GET /v1/responses/{id}", "GET /v1/sessions/{id}/manifest"])
def test_an_answer_that_is_told_elsewhere_is_named(route: str) -> None:
    """By the route that has its fields."""
    (elsewhere,) = re.findall(r"^Answer 200, .*: as under (.*)\.$", sections()[route], flags=re.MULTILINE)
    assert elsewhere in sections()


def test_every_error_is_on_the_page() -> None:
    """Each row of the table of errors, with its status, type and code."""
    rows = {tuple(row) for row in re.findall(r"^\| (\d+) \| (\w+) \| `?(\w+)", PAGE, flags=re.MULTILINE)}
    assert {(str(row.status), row.type, row.code or "null") for row in TABLE.values()} <= rows


def test_every_event_of_a_response_is_on_the_page(serve: Serve) -> None:
    """Those of reasoning, a message and a call, of an answer that was cut and of one that failed."""
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    server = serve(
        Recording(match="whole", pieces=("r", "</think>", "text", call)),
        Recording(match="cut", pieces=("r", "</think>", "text"), finish="length"),
        Recording(match="broken", pieces=("r", "</think>", "text"), finish="error"),
    )
    sent = {
        event["type"]
        for text in ("whole", "cut", "broken")
        for event in server.post("/v1/responses", {"input": text, "stream": True}).events[:-1]
    }
    assert sent == set(re.findall(r"`(response\.[a-z_.]+)`", sections()["POST /v1/responses"]))
