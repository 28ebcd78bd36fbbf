"""GET /metrics and /v1/stats."""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import TYPE_CHECKING

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from maple.scripted.script import Recording

if TYPE_CHECKING:
    import pathlib

    from tests.http.conftest import LiveServer, Serve

CHAT = 'maple_requests_total{route="/v1/chat/completions",status="200"}'
NAMES = {
    "maple_requests": "counter",
    "maple_requests_running": "gauge",
    "maple_requests_waiting": "gauge",
    "maple_requests_cancelled": "counter",
    "maple_prompt_tokens": "counter",
    "maple_cached_tokens": "counter",
    "maple_generation_tokens": "counter",
    "maple_reasoning_tokens": "counter",
    "maple_queue_wait_seconds": "histogram",
    "maple_time_to_first_token_seconds": "histogram",
    "maple_time_per_output_token_seconds": "histogram",
    "maple_request_seconds": "histogram",
    "maple_kv_bytes": "gauge",
    "maple_kv_blocks": "gauge",
    "maple_prefix_cache_queries": "counter",
    "maple_prefix_cache_hits": "counter",
    "maple_prefix_cache_evictions": "counter",
    "maple_prefix_disk_bytes": "gauge",
    "maple_prefix_disk_written_blocks": "counter",
    "maple_prefix_disk_read_blocks": "counter",
    "maple_prefix_disk_damaged_blocks": "counter",
    "maple_sessions": "gauge",
    "maple_log_lines_dropped": "counter",
    "maple_model_load_seconds": "gauge",
    "maple_build_info": "gauge",
    "maple_loop_lag_seconds": "histogram",
    "maple_engine_step_seconds": "histogram",
    "maple_inflated_bytes": "counter",
    "maple_structured_items": "counter",
    "maple_counted_tokens": "counter",
    "maple_preparation_refused": "counter",
    "maple_body_bytes": "gauge",
    "maple_preparation_threads": "gauge",
    "maple_preparation_waiting": "gauge",
}


def families(server: LiveServer) -> dict[str, Metric]:
    text = server.get("/metrics").body.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_every_name_has_its_kind_and_its_help(server: LiveServer) -> None:
    """Read by Prometheus's own parser."""
    found = families(server)
    assert {name: found[name].type for name in found} == NAMES
    assert all(family.documentation for family in found.values())


def test_one_request_moves_each_counter_by_the_right_amount(server: LiveServer) -> None:
    """Five pieces, one of them reasoning; five ids are sampled."""
    usage = server.chat().json["usage"]
    server.settle()
    assert server.metric(CHAT) == 1
    assert server.metric("maple_prompt_tokens_total") == usage["prompt_tokens"] > 0
    assert server.metric("maple_generation_tokens_total") == usage["completion_tokens"] == 5
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert server.metric("maple_reasoning_tokens_total") == reasoning == 1
    for name in ("queue_wait", "time_to_first_token", "time_per_output_token", "request"):
        assert server.metric(f"maple_{name}_seconds_count") == 1
    assert server.metric("maple_requests_cancelled_total") == 0


def test_times_land_in_the_right_place(serve: Serve) -> None:
    """A token every 30 ms: the first after 30 ms, each further one 30 ms later, four in 120 ms."""
    server = serve(Recording(pieces=("</think>", "a", "b", "c"), delay_ms=30))
    started = time.monotonic()
    server.chat()
    server.settle()
    longest = time.monotonic() - started
    assert 0.09 <= server.metric("maple_request_seconds_sum") <= longest
    assert 0.03 <= server.metric("maple_time_per_output_token_seconds_sum") <= longest / 3
    assert 0.03 <= server.metric("maple_time_to_first_token_seconds_sum") <= longest


def test_running_and_waiting_are_as_of_the_scrape(serve: Serve) -> None:
    """Gauges, read from the engine."""
    server = serve(Recording(pieces=tuple("abcdefghij" * 10), delay_ms=20))
    with server.open_stream() as first:
        server.read_until(first, b"data:")
        with server.open_stream():
            server.until(lambda: server.engine.stats().waiting == 1)
            assert (server.metric("maple_requests_running"), server.metric("maple_requests_waiting")) == (
                1,
                1,
            )
    server.until_idle()
    assert (server.metric("maple_requests_running"), server.metric("maple_requests_waiting")) == (0, 0)


def test_refusals_are_counted_by_route_and_status(server: LiveServer) -> None:
    """A bad field, a wrong method, and paths that do not exist under one label."""
    server.chat(n=2)
    server.get("/v1/chat/completions")
    server.get("/nowhere")
    server.get("/elsewhere")
    server.settle()
    assert server.metric(CHAT.replace("200", "400")) == 1
    assert server.metric(CHAT.replace("200", "405")) == 1
    assert server.metric('maple_requests_total{route="unmatched",status="404"}') == 2


def test_a_failed_generation_is_no_first_token(serve: Serve) -> None:
    """It counts as a request and as its time, not as a finished turn."""
    server = serve(Recording(pieces=("x",), finish="error"))
    server.chat()
    server.settle()
    assert server.metric("maple_request_seconds_count") == 1
    assert server.metric("maple_time_to_first_token_seconds_count") == 0


def test_clients_cannot_make_series(server: LiveServer) -> None:
    """10,000 random paths, ids, models and methods: as many series as after the first few."""
    dice = random.Random(3)  # noqa: S311 -- seeded, no secret

    def visit(count: int) -> int:
        connection = server.connection()
        for _ in range(count):
            word = f"{dice.getrandbits(64):x}"
            server.ask(connection, "GET", f"/{word}")
            server.ask(connection, "GET", f"/v1/models/{word}")
            server.ask(connection, "DELETE", f"/v1/sessions/{word}")
            server.ask(connection, "POST", "/v1/chat/completions", server.chat_body(model=word))
            server.ask(connection, dice.choice(["PUT", "PATCH", "TRACE"]), "/healthz")
        connection.close()
        server.settle()
        return len(server.services.metrics.exposition().splitlines())

    assert visit(10) == visit(2000)


def test_stats_are_one_line_for_people(server: LiveServer) -> None:
    """With every count in words."""
    server.chat()
    server.settle()
    text = server.get("/v1/stats").body.decode()
    assert text.count("\n") == 1
    assert text.startswith("maple-preview ok: running 0, waiting 0, cancelled 0, prompt tokens ")
    assert "generation tokens 5" in text


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/v1/stats?format=json", ""),
        ("/v1/stats", "application/json"),
        ("/v1/stats", "text/html, application/json;q=0.9"),
        ("/v1/stats?format=json", "text/plain"),
    ],
)
def test_stats_are_json_for_programs_that_ask(server: LiveServer, path: str, accept: str) -> None:
    """By query or by header."""
    answer = server.get(path, Accept=accept)
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.json["status"] == "ok"
    assert {"running", "waiting", "cancelled", "prompt_tokens", "generation_tokens"} <= set(answer.json)


@pytest.mark.parametrize(
    ("path", "accept"), [("/v1/stats?format=text", "application/json"), ("/v1/stats", "*/*")]
)
def test_stats_are_text_otherwise(server: LiveServer, path: str, accept: str) -> None:
    """A query wins over the header."""
    answer = server.get(path, Accept=accept)
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.body)


def test_stats_show_a_key_its_own_requests_and_of_others_the_number(
    serve: Serve, tmp_path: pathlib.Path
) -> None:
    """Ids are what operators search logs for: another key's tell who does what, and when."""
    file = tmp_path / "keys"
    file.write_text("ada:one\nbob:two\n")
    file.chmod(0o600)
    server = serve(Recording(pieces=tuple("abcdefghij" * 100), delay_ms=20), api_key_file=file)
    keys = {"ada": "Bearer one", "bob": "Bearer two"}
    with contextlib.ExitStack() as stack:
        for name, key in (("first", "Bearer one"), *keys.items()):
            body = server.chat_body(stream=True)
            sent = server.request_bytes(
                "/v1/chat/completions", body, Authorization=key, X_Request_Id=f"of-{name}"
            )
            stack.enter_context(server.send(sent))
            server.until(lambda: server.engine.stats().running == 1)
        server.until(lambda: server.engine.stats().waiting == 2)
        for name, key in keys.items():
            stats = server.get("/v1/stats?format=json", Authorization=key).json
            assert [each["request_id"] for each in stats["queue"]] == [f"of-{name}"]
            assert (stats["running"], stats["waiting"]) == (1, 2)
            text = server.get("/v1/stats", Authorization=key).body.decode()
            assert [word for word in text.split() if word.startswith("of-")] == [f"of-{name}"]
    server.until_idle()
