"""What each kind of handler takes, gives and refuses, for the API's description.

Schemas come from the field tables and statuses from the table of errors: here is only which of them belong to
which handler. A handler that is not listed cannot be served, so that no route goes undescribed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from maple_protocols.adapter import GenerationAdapter, Policy
from maple_protocols.errors import InvalidField, ModelNotFound
from maple_protocols.openai.described import ResponseDeleted
from maple_protocols.rules import Schema
from maple_protocols.schema import answer_schema, json_schema

from maple.engine.api import (
    EngineOverloaded,
    GenerationFailed,
    PromptTooLong,
    SessionLoaded,
    SessionManifest,
    SessionMismatch,
    SessionsFull,
    SessionTampered,
    SessionUnknown,
)
from maple.http.api_operation import (
    BODY,
    ENGINE,
    ERROR_REFERENCE,
    EVENTS,
    JSON,
    TEXT,
    Contents,
    Operation,
    Operations,
    Refusals,
    first_sentence,
)
from maple.http.application import Route
from maple.http.base import JsonHandler
from maple.http.errors import (
    NotConfigured,
    ResponseUnknown,
    RouteNotFound,
)
from maple.http.generate import GenerateHandler
from maple.http.listing import ListingHandler
from maple.http.operations import MetricsHandler, Stats, StatsHandler, StatsQuery
from maple.http.pages import INDEX, FrontHandler, PageHandler
from maple.http.probes import Health, HealthHandler, Liveness, LivenessHandler, Readiness, ReadinessHandler
from maple.http.sessions import (
    SESSION_ID,
    SessionActionHandler,
    SessionDeleted,
    SessionDeleteHandler,
    SessionManifestHandler,
)
from maple.http.stored import StoredHandler, StoredItemsHandler
from maple.responses_store import StoreBroken, StoreFull


def operations(route: Route, policy: Policy) -> Operations:
    """What a route offers. ``policy`` decides on unknown fields."""
    return _DESCRIBERS[route.handler](route, policy)


def _json(kind: type) -> Contents:
    return {JSON: answer_schema(kind)}


def _generation(route: Route, policy: Policy) -> Operations:
    adapter: GenerationAdapter = route.options["adapter"]
    answers: Mapping[str, type] = getattr(adapter, "answers", {})
    stream = _stream(answer_schema(answers["event"]) if "event" in answers else {})
    whole: Schema = answer_schema(answers["whole"]) if "whole" in answers else {"type": "object"}
    keeps = hasattr(adapter, "kept")
    kept: Refusals = (ResponseUnknown, NotConfigured, StoreFull, StoreBroken) if keeps else ()
    turn: Refusals = (PromptTooLong, EngineOverloaded, GenerationFailed)
    operation = Operation(
        summary=first_sentence(adapter),
        tag="Generation",
        answers={200: {JSON: whole, EVENTS: stream}},
        refusals=(*BODY, InvalidField, *ENGINE, ModelNotFound, *turn, *kept),
        request=json_schema(adapter.request, closed=policy.refuses_unknown(closed=adapter.closed)),
    )
    return {"post": operation}


def _stream(data: Schema) -> Schema:
    """A server-sent event, as OpenAPI has no word for it: the stream is many of these."""
    end: Schema = {"const": "[DONE]"}
    events = [_encoded(data), _encoded(ERROR_REFERENCE)] if data else []
    return {
        "type": "object",
        "description": "With stream: server-sent events. The data of the last is [DONE].",
        "properties": {"event": {"type": "string"}, "data": {"anyOf": [*events, end]} if data else {}},
        "required": ["data"],
    }


def _encoded(schema: Schema) -> Schema:
    return {"type": "string", "contentMediaType": JSON, "contentSchema": schema}


def _listing(route: Route, _: Policy) -> Operations:
    adapter = route.options["adapter"]
    kind = getattr(adapter, "answers", {}).get(route.pattern)
    contents: Contents = _json(kind) if kind else {JSON: {"type": "object"}}
    operation = Operation(
        summary=first_sentence(kind or adapter),
        tag="Models",
        answers={200: contents},
        refusals=(ModelNotFound,) if route.parameter else (),
    )
    return {"get": operation}


def _stored(route: Route, _: Policy) -> Operations:
    adapter = route.options["adapter"]
    refusals: Refusals = (ResponseUnknown, NotConfigured, StoreBroken)
    contents = _json(adapter.answers[route.pattern])
    if route.pattern == adapter.items_path:
        page = Operation(
            summary="What came before a stored response.",
            tag="Stored responses",
            answers={200: contents},
            refusals=(InvalidField, *refusals),
            query=adapter.items_query,
        )
        return {"get": page}
    shown = Operation(
        summary="A stored response.",
        tag="Stored responses",
        answers={200: contents},
        refusals=(InvalidField, *refusals),
        query=adapter.query,
    )
    deleted = attrs.evolve(
        shown,
        summary="Forget a stored response.",
        answers={200: _json(ResponseDeleted)},
        refusals=refusals,
        query=None,
    )
    return {"get": shown, "delete": deleted}


def _session(method: str, summary: str, kind: type) -> Operations:
    operation = Operation(
        summary=summary,
        tag="Sessions",
        answers={200: _json(kind)},
        refusals=(InvalidField, SessionUnknown, NotConfigured),
        parameter={"type": "string", "pattern": f"^{SESSION_ID.pattern}$"},
    )
    return {method: operation}


def _session_manifest(_: Route, __: Policy) -> Operations:
    (operation,) = _session("get", "The last save of a session.", SessionManifest).values()
    return {"get": attrs.evolve(operation, refusals=(*operation.refusals, SessionTampered))}


def _session_action(route: Route, _: Policy) -> Operations:
    saves = route.pattern.endswith("/save")
    summary = "Save a live session." if saves else "Load a saved session."
    (operation,) = _session("post", summary, SessionManifest if saves else SessionLoaded).values()
    files = (SessionsFull,) if saves else (SessionMismatch, SessionTampered, SessionsFull)
    refusals = (*operation.refusals, *BODY, *ENGINE, *files)
    request: Schema = {"type": "object", "description": "Not needed, and not looked at."}
    return {"post": attrs.evolve(operation, refusals=refusals, request=request, request_required=False)}


def _probe(handler: type[JsonHandler], kind: type, *statuses: int) -> Operations:
    answers = dict.fromkeys((200, *statuses), _json(kind))
    operation = Operation(summary=first_sentence(handler), tag="Operations", answers=answers, needs_key=False)
    return {"get": operation}


def _text(summary: str, **others: Any) -> Operation:
    contents: Contents = {TEXT: {"type": "string"}, **others.pop("also", {})}
    return Operation(summary=summary, tag="Operations", answers={200: contents}, **others)


def _page(route: Route, _: Policy) -> Operations:
    pages = route.options["pages"]
    names = [INDEX] if route.parameter is None else [name for name in pages if name != INDEX]
    types = sorted({pages[name].media_type.partition(";")[0] for name in names})
    contents: dict[str, Schema] = {
        kind: {"type": "object"} if kind == JSON else {"type": "string"} for kind in types
    }
    operation = Operation(
        summary=route.summary,
        tag="Pages",
        answers={200: contents, 304: {}},
        parameter={"enum": names},
        refusals=(RouteNotFound,) if route.parameter else (),
        needs_key=False,
    )
    return {"get": operation}


def _front(_: Route, __: Policy) -> Operations:
    operation = Operation(
        summary="Sends browsers to the chat page.", tag="Pages", answers={302: {}}, needs_key=False
    )
    return {"get": operation}


_DESCRIBERS: Mapping[type, Callable[[Route, Policy], Operations]] = {
    GenerateHandler: _generation,
    ListingHandler: _listing,
    StoredHandler: _stored,
    StoredItemsHandler: _stored,
    SessionActionHandler: _session_action,
    SessionManifestHandler: _session_manifest,
    SessionDeleteHandler: lambda *_: _session("delete", "Delete a session.", SessionDeleted),
    HealthHandler: lambda *_: _probe(HealthHandler, Health, 503),
    LivenessHandler: lambda *_: _probe(LivenessHandler, Liveness),
    ReadinessHandler: lambda *_: _probe(ReadinessHandler, Readiness, 503),
    MetricsHandler: lambda *_: {"get": _text("All metrics, in Prometheus's text format.")},
    StatsHandler: lambda *_: {
        "get": _text(
            "The engine's counts, for people, or in JSON if asked for.", also=_json(Stats), query=StatsQuery
        )
    },
    PageHandler: _page,
    FrontHandler: _front,
}
