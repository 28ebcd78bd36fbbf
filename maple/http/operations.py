"""GET /metrics and /v1/stats: what operators watch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import attrs
from maple_protocols.adapter import JsonObject, Policy
from maple_protocols.rules import Doc

from maple.engine.api import EngineStatus
from maple.engine.loading import Loading
from maple.engine.stats import EngineStats
from maple.http.api_operation import TEXT, Contents, Operation, Operations, json_of
from maple.http.application import Route
from maple.http.base import JsonHandler
from maple.http.exchange import TEXT_TYPE
from maple.http.wire import encode_json
from maple.observe.metrics import CONTENT_TYPE

PLAIN: Contents = {TEXT: {"type": "string"}}


@attrs.frozen(kw_only=True)
class Stats(EngineStats):
    """The engine's counts as of now."""

    model: str
    status: EngineStatus
    loading: Annotated[Loading | None, Doc("There only while the model loads; bytes.")] = None


@attrs.frozen(kw_only=True)
class StatsQuery:
    """The query of GET /v1/stats."""

    format: Annotated[str, Doc("json, or any other word for text; wins over the Accept header.")] = "text"


class MetricsHandler(JsonHandler):
    """Prometheus's text format."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET."""
        summary = "All metrics, in Prometheus's text format."
        return {"get": Operation(summary=summary, tag="Operations", answers={200: PLAIN})}

    def open_to_all(self) -> bool:
        """Scrapers often cannot send a key: the operator decides."""
        return self.services.settings.metrics_public

    async def respond(self, *groups: str) -> None:
        """All metrics."""
        self.set_header("Content-Type", CONTENT_TYPE)
        self.write(self.services.metrics.exposition())


class StatsHandler(JsonHandler):
    """The engine's counts: one line for people, JSON for programs that ask for it."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET, in either form."""
        operation = Operation(
            summary="The engine's counts, for people, or in JSON if asked for.",
            tag="Operations",
            answers={200: {**PLAIN, **json_of(Stats)}},
            query=StatsQuery,
        )
        return {"get": operation}

    async def respond(self, *groups: str) -> None:
        """The counts as of now."""
        turns, model = self.services.turns, self.services.settings.model_id
        load = turns.engine.loading.now if turns.status == "loading" else None
        stats = _own_part(turns.engine.stats(), self.maple.own_ids(self.owner))
        if self._wants_json():
            counts = attrs.asdict(stats, recurse=False)
            self.write(encode_json(_told(Stats(model=model, status=turns.status, loading=load, **counts))))
            return
        self.set_header("Content-Type", TEXT_TYPE)
        state = turns.status if load is None else f"{load.phase} {load.done}/{load.total}"
        self.write(f"{model} {state}: {', '.join(_words(stats))}\n")

    def _wants_json(self) -> bool:
        wanted = self.get_query_argument("format", "")
        return wanted == "json" or (
            not wanted and "application/json" in self.request.headers.get("Accept", "")
        )


def _told(stats: Stats) -> JsonObject:
    fields: JsonObject = attrs.asdict(stats)
    absent = {"loading": None, "replicas": ()}  # there while a model loads, and on a cluster
    return {name: value for name, value in fields.items() if name not in absent or value != absent[name]}


def _own_part(stats: EngineStats, ids: frozenset[str]) -> EngineStats:
    """The counts of all, and of single requests those of one owner."""
    return attrs.evolve(
        stats,
        queue=tuple(each for each in stats.queue if each.request_id in ids),
        prefills=tuple(each for each in stats.prefills if each.request_id in ids),
    )


def _words(stats: EngineStats) -> Iterator[str]:
    for name, count in attrs.asdict(stats, recurse=False).items():
        if isinstance(count, int):
            yield f"{name.replace('_', ' ')} {count}"
    for one in stats.prefills:
        yield f"prefill of {one.request_id} {one.done_tokens}/{one.prompt_tokens}"
    for waiter in stats.queue:
        yield f"{waiter.request_id} waits at {waiter.position}"
