"""One span a request, with the phases of a generation, as a child of the caller's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from maple.observe.tracing import Tracing, open_tracing, wants_tracing
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the otel extra is not installed here")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
export = pytest.importorskip("opentelemetry.sdk.trace.export")

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TALK = Recording(pieces=("Hm.", "</think>", "Hello", " world"), delay_ms=5)
BROKEN = Recording(match="broken", pieces=("</think>", "half"), finish="error")
FOREVER = Recording(match="forever", pieces=("x",) * 10_000, delay_ms=20)


@pytest.fixture
def exporter() -> Iterator[Any]:
    kept = memory.InMemorySpanExporter()
    yield kept
    kept.shutdown()


@pytest.fixture
def traced(serve: Serve, exporter: Any) -> LiveServer:
    """A server whose spans go to ``exporter`` at once."""
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    return serve(BROKEN, FOREVER, TALK, tracing=Tracing(provider))


def spans(server: LiveServer, exporter: Any) -> list[Any]:
    server.settle()
    return list(exporter.get_finished_spans())


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_is_one_span_with_its_phases(traced: LiveServer, exporter: Any, stream: bool) -> None:
    """Queue, prefill and decode in order, within the span; counts and the request's id as attributes."""
    traced.post("/v1/chat/completions", traced.chat_body(stream=stream), {"X-Request-Id": "mine"})
    (span,) = spans(traced, exporter)
    assert (span.name, span.kind.name) == ("POST /v1/chat/completions", "SERVER")
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]
    times = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
    assert times == sorted(times)
    assert span.attributes["maple.request_id"] == "mine"
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["gen_ai.usage.output_tokens"] == 4
    assert span.attributes["gen_ai.usage.input_tokens"] > 0
    assert span.attributes["maple.reasoning_tokens"] == 1
    assert span.status.status_code.name == "UNSET"


def test_a_traceparent_is_honoured(traced: LiveServer, exporter: Any) -> None:
    """The span belongs to the caller's trace, below the caller's span."""
    traced.get("/healthz", traceparent=f"00-{TRACE}-{PARENT}-01")
    (span,) = spans(traced, exporter)
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT


def test_an_unsampled_traceparent_is_honoured(traced: LiveServer, exporter: Any) -> None:
    """The caller decided that this trace is not recorded."""
    traced.get("/healthz", traceparent=f"00-{TRACE}-{PARENT}-00")
    assert spans(traced, exporter) == []


@pytest.mark.parametrize("sent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"])
def test_any_other_traceparent_begins_a_trace(traced: LiveServer, exporter: Any, sent: str) -> None:
    """As the standard wants it."""
    traced.get("/healthz", traceparent=sent)
    (span,) = spans(traced, exporter)
    assert span.parent is None


def test_refusals_have_spans_and_names_come_from_the_route_table(traced: LiveServer, exporter: Any) -> None:
    """Client text never becomes a name or a label."""
    traced.get("/nowhere/secret")
    traced.get("/v1/models/secret")
    traced.request("BREW", "/healthz")
    traced.chat(n=2)
    found = spans(traced, exporter)
    assert [(span.name, span.attributes["http.response.status_code"]) for span in found] == [
        ("GET unmatched", 404),
        ("GET /v1/models/{id}", 200),
        ("_OTHER /healthz", 405),
        ("POST /v1/chat/completions", 400),
    ]
    assert "secret" not in "".join(span.to_json() for span in found)
    assert found[3].events == ()


@pytest.mark.parametrize(("stream", "status"), [(False, 500), (True, 200)])
def test_a_failure_is_an_error(traced: LiveServer, exporter: Any, stream: bool, status: int) -> None:
    """Also after the status line; the span has the wait and no later phase."""
    traced.chat("broken", stream=stream)
    (span,) = spans(traced, exporter)
    assert span.status.status_code.name == "ERROR"
    assert span.attributes["http.response.status_code"] == status
    assert [event.name for event in span.events] == ["queue"]


def test_a_client_that_leaves_ends_its_span(traced: LiveServer, exporter: Any) -> None:
    """499, and no error of ours."""
    raw = traced.open_stream("forever")
    traced.read_until(raw, b"data: ")
    raw.close()
    traced.until_idle()
    (span,) = spans(traced, exporter)
    assert span.attributes["http.response.status_code"] == 499
    assert span.status.status_code.name == "UNSET"


def test_nothing_is_traced_by_default(serve: Serve) -> None:
    """No place to send spans to, no tracing."""
    assert serve().services.tracing is None
    assert open_tracing({}, version="1") is None


def test_without_tracing_none_of_its_packages_is_imported() -> None:
    """Zero cost: a server's imports leave opentelemetry alone."""
    code = "import sys, maple.app; print(any(name.startswith('opentelemetry') for name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
    ],
)
def test_the_standard_variables_turn_it_on(variables: dict[str, str], wanted: bool) -> None:
    """And off."""
    assert wants_tracing(variables) is wanted


def test_the_missing_extra_is_one_warning(monkeypatch: pytest.MonkeyPatch, log_lines: Any) -> None:
    """Someone asked for traces and did not install them: the server starts all the same."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert open_tracing({"OTEL_TRACES_EXPORTER": "otlp"}, version="1") is None
    assert [line["event"] for line in log_lines()] == ["tracing.extra_missing"]
