"""Prometheus metrics: counted by the client library in a registry of the server's own.

What the engine counts itself is read from it at each scrape, so no number is kept twice. Label values come
from fixed sets (route patterns and statuses), never from clients.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import attrs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from maple.engine.api import Engine, Finish
from maple.engine.stats import ReplicaLoad
from maple.engine.step_clock import BUCKETS as STEP_BUCKETS
from maple.observe.logs import dropped_lines

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Seconds: 1 ms, about a scripted token, to 10 min, about a long answer on a slow CPU."""

_ENGINE_COUNTERS = {
    "requests_cancelled": "Jobs dropped because their client left",
    "prompt_tokens": "Prompt ids",
    "cached_tokens": "Prompt ids whose keys and values were reused",
    "generation_tokens": "Sampled ids, EOS and reasoning included",
    "prefix_cache_queries": "Prompts looked up for reuse",
    "prefix_cache_hits": "Prompts of which something was reused",
    "prefix_cache_evictions": "Kept prefixes dropped for room",
    "prefix_disk_written_blocks": "Blocks of prefixes written to the disk",
    "prefix_disk_read_blocks": "Blocks of prefixes read from the disk",
    "prefix_disk_damaged_blocks": "Blocks on the disk that were found damaged, and removed",
}
_ENGINE_GAUGES = {
    "requests_running": "Jobs that hold a slot",
    "requests_waiting": "Jobs in the queue",
    "kv_bytes": "Bytes held by keys and values",
    "kv_blocks": "Blocks of keys and values held by sequences, or kept for reuse",
    "sessions": "Live sessions",
    "prefix_disk_bytes": "Bytes of prefixes on the disk",
}


@attrs.frozen(kw_only=True)
class TurnTimes:
    """What one finished turn took. ``first_token_seconds`` is counted from the request's last header."""

    finish: Finish
    reasoning_tokens: int
    first_token_seconds: float


class BudgetMetrics:
    """What is done for requests before a slot. Counters take ``inc`` on any thread; who owns the figures behind the
    gauges sets their functions.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"maple_{name}", text, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"maple_{name}", text, registry=registry)

        self.inflated_bytes = counter("inflated_bytes", "Bytes that compressed bodies came to")
        self.structured_items = counter("structured_items", "Messages, tools and the like that were read")
        self.counted_tokens = counter("counted_tokens", "Prompt ids counted before admission")
        self.refused = counter("preparation_refused", "Requests refused by the budget")
        self.body_bytes = gauge("body_bytes", "Bytes of bodies that are held")
        self.threads = gauge("preparation_threads", "Threads that read a body or a prompt")
        self.waiting = gauge("preparation_waiting", "Requests that wait for such a thread")


class Metrics:
    """All the server's metrics. Used on the event loop's thread."""

    def __init__(self, engine: Engine, *, version: str) -> None:
        self._registry = _Registry()
        self._registry.register(_EngineCollector(engine, version))
        self._requests = Counter(
            "maple_requests", "Answered requests", ("route", "status"), registry=self._registry
        )
        self._reasoning_tokens = Counter(
            "maple_reasoning_tokens", "Ids sampled inside the reasoning block", registry=self._registry
        )
        self._queue_wait = self._histogram("queue_wait", "From submission to the slot")
        self._first_token = self._histogram("time_to_first_token", "From the request to its first token")
        self._per_token = self._histogram("time_per_output_token", "Decoding, per token after the first")
        self._request = self._histogram(
            "request", "From the request to the end of its answer, generation only"
        )

        self.loop_lag = self._histogram("loop_lag", "How late the event loop comes to what is due")
        self.budget = BudgetMetrics(self._registry)

    def answered(self, route: str, status: int) -> None:
        """One request has been answered, or left by its client (499). ``route`` is a pattern, not a path."""
        self._requests.labels(route, str(status)).inc()

    def turn_ended(self, seconds: float) -> None:
        """One generation request is over, however it ended."""
        self._request.observe(seconds)

    def turn_finished(self, times: TurnTimes) -> None:
        """One turn came to its Finish."""
        finish = times.finish
        self._reasoning_tokens.inc(times.reasoning_tokens)
        self._queue_wait.observe(finish.queue_seconds)
        self._first_token.observe(times.first_token_seconds)
        if finish.completion_tokens > 1:
            self._per_token.observe(finish.decode_seconds / (finish.completion_tokens - 1))

    def exposition(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"maple_{name}_seconds", text, buckets=BUCKETS, registry=self._registry)


class _Registry(CollectorRegistry):
    """A registry without the ``_created`` series, which double the exposition and tell nothing."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def _replicas(replicas: Iterable[ReplicaLoad]) -> Iterator[Metric]:
    """A cluster's replicas, a series each; nothing without a cluster."""
    load = GaugeMetricFamily("maple_replica_load", "Jobs that run or wait on a replica", labels=("replica",))
    slots = GaugeMetricFamily(
        "maple_replica_slots", "Jobs that run at a time on a replica", labels=("replica",)
    )
    for one in replicas:
        load.add_metric((one.replica,), one.load)
        slots.add_metric((one.replica,), one.slots)
    yield from (family for family in (load, slots) if family.samples)


class _EngineCollector(Collector):
    """What others count, as of the scrape."""

    def __init__(self, engine: Engine, version: str) -> None:
        self._engine = engine
        self._version = version

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats()
        values = attrs.asdict(stats, recurse=False)
        for name, text in _ENGINE_COUNTERS.items():
            yield CounterMetricFamily(f"maple_{name}", text, value=values[name.removeprefix("requests_")])
        for name, text in _ENGINE_GAUGES.items():
            yield GaugeMetricFamily(f"maple_{name}", text, value=values[name.removeprefix("requests_")])
        yield CounterMetricFamily(
            "maple_log_lines_dropped", "Log lines that nobody read in time", value=dropped_lines()
        )
        yield self._steps()
        yield from _replicas(stats.replicas)
        served = self._engine.served
        if served is not None:
            yield GaugeMetricFamily(
                "maple_model_load_seconds", "How long the model took to load", value=served.load_seconds
            )
        info = GaugeMetricFamily("maple_build_info", "The server's version", labels=("version",))
        info.add_metric((self._version,), 1)
        yield info

    def _steps(self) -> Metric:
        """The engine's own histogram."""
        clock = self._engine.steps
        bounds = [*map(str, map(float, STEP_BUCKETS)), "+Inf"]
        buckets = list(zip(bounds, itertools.accumulate(clock.counts), strict=True))
        return HistogramMetricFamily(
            "maple_engine_step_seconds", "One step of the engine's thread", buckets, clock.seconds
        )
