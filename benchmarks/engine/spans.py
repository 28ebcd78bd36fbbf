"""A collector for the spans of one server, which tell how long each request's prefill took."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(http.server.ThreadingHTTPServer):
    """Takes OTLP over HTTP on a free port; ``prefill_seconds`` by request id."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.prefill_seconds: dict[str, float] = {}

    def environment(self) -> dict[str, str]:
        """What sends a server's spans here, all of them once it stops: none is sent while it is measured."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }

    def take(self, body: bytes) -> None:
        """Note the spans that generated something."""
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in (span for scope in group.scope_spans for span in scope.spans):
                request_id = {one.key: one.value.string_value for one in span.attributes}["maple.request_id"]
                facts = [one for event in span.events for one in event.attributes]
                for fact in facts:
                    if fact.key == "maple.prefill_seconds":
                        self.prefill_seconds[request_id] = fact.value.double_value


class _Receiver(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        self.server.take(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()
