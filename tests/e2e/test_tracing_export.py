"""A server with the otel extra sends its spans to a collector that the standard variables name."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from tests.e2e.conftest import StartServer

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(http.server.ThreadingHTTPServer):
    """Takes OTLP over HTTP, and keeps what came."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.requests: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[tuple[dict[str, str], Any]]:
        """Every span with its resource."""
        return [
            ({each.key: each.value.string_value for each in group.resource.attributes}, span)
            for request in self.requests
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_reach_the_collector(
    start_server: StartServer, write_script: Callable[..., str], collector: Collector
) -> None:
    """Named, below the caller's span, with their phases; what is left goes out at the end."""
    script = write_script({"match": None, "pieces": ["</think>", "a", "b"], "finish": "stop"})
    server = start_server("--scripted", script, settings={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert server.request("POST", "/v1/chat/completions", body, traceparent=TRACEPARENT).status == 200
    assert server.stop() == 0
    ((resource, span),) = collector.spans()
    assert resource["service.name"] == "maple"
    assert resource["service.version"]
    assert span.name == "POST /v1/chat/completions"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == tuple(TRACEPARENT.split("-")[1:3])
    assert [event.name for event in span.events] == ["queue", "prefill", "decode"]


def test_a_collector_that_is_away_harms_nobody(
    start_server: StartServer, write_script: Callable[..., str], collector: Collector
) -> None:
    """Requests are answered, and the server ends as it should."""
    url = collector.url.replace(str(collector.server_port), "9")  # the discard port: nobody listens
    script = write_script({"match": None, "pieces": ["</think>", "a"], "finish": "stop"})
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    server = start_server("--scripted", script, settings=settings)
    assert server.chat("hi").status == 200
    assert server.stop() == 0
