"""Traces by OpenTelemetry, where the ``otel`` extra is installed and an ``OTEL_`` variable asks for them.

One span a request, a child of the caller's (W3C traceparent); a generation has events for its three phases.
Without the extra nothing of it is imported, and handlers find no tracing at all.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from maple.engine.api import Finish

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = structlog.get_logger(__name__)

SERVICE = "maple"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SERVER_ERROR = 500
FLUSH_MILLISECONDS = 5000

_NANOSECONDS = 1_000_000_000


def open_tracing(environ: Mapping[str, str], *, version: str) -> Tracing | None:
    """Tracing as the standard variables want it: None unless they name a place to send spans to."""
    if not wants_tracing(environ):
        return None
    if importlib.util.find_spec("opentelemetry") is None:
        log.warning("tracing.extra_missing", advice="pip install 'maple-server[otel]'")
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    own = {"service.version": version}
    if not environ.get("OTEL_SERVICE_NAME"):
        own["service.name"] = SERVICE
    provider = TracerProvider(resource=Resource.create(own))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


def wants_tracing(environ: Mapping[str, str]) -> bool:
    """Whether the variables ask for OTLP, and do not forbid it."""
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    return exporter == "otlp" or any(environ.get(name) for name in ENDPOINTS)


class Tracing:
    """Makes spans. One per server; used on the event loop's thread."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, *, method: str, route: str, headers: Mapping[str, str], request_id: str) -> RequestSpan:
        """A request's span. ``route`` is a pattern, not a path; of the headers the trace context is read."""
        from opentelemetry.trace import SpanKind  # noqa: PLC0415

        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        span = self._tracer.start_span(
            f"{method} {route}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route, "maple.request_id": request_id},
        )
        return RequestSpan(span)

    def close(self) -> None:
        """Send what is left; blocks for a few seconds at most."""
        self._provider.force_flush(FLUSH_MILLISECONDS)
        self._provider.shutdown()


class RequestSpan:
    """The span of one request: ``submitted`` and ``generated`` if it generates, then ``end``."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._submitted = 0

    def submitted(self) -> None:
        """Its job waits for a slot from now on."""
        self._submitted = time.time_ns()
        self._span.add_event("queue", timestamp=self._submitted)

    def generated(self, finish: Finish, *, reasoning_tokens: int) -> None:
        """Its job is done: when each phase began is counted from the submission."""
        prefill = self._submitted + int(finish.queue_seconds * _NANOSECONDS)
        decode = prefill + int(finish.prefill_seconds * _NANOSECONDS)
        seconds = {"maple.queue_seconds": finish.queue_seconds}
        self._span.add_event("prefill", seconds, timestamp=prefill)
        seconds = {"maple.prefill_seconds": finish.prefill_seconds}
        self._span.add_event("decode", seconds, timestamp=decode)
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": finish.prompt_tokens,
                "gen_ai.usage.output_tokens": finish.completion_tokens,
                "gen_ai.response.finish_reasons": [finish.reason],
                "maple.cached_tokens": finish.cached_tokens,
                "maple.reasoning_tokens": reasoning_tokens,
                "maple.decode_seconds": finish.decode_seconds,
            }
        )

    def failed(self, kind: str) -> None:
        """It broke after its status line: ``kind`` names the error's class."""
        from opentelemetry.trace import StatusCode  # noqa: PLC0415

        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)

    def end(self, status: int) -> None:
        """It has been answered, or was left by its client (499)."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= SERVER_ERROR:
            self.failed(str(status))
        self._span.end()
