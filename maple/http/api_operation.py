"""An operation of the API, for its description: one method of one route, and the words to describe it with."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import attrs
from maple_protocols.errors import ModelNotFound
from maple_protocols.json import InvalidJson
from maple_protocols.rules import Schema
from maple_protocols.schema import answer_schema

from maple.engine.errors import ModelFailed, ModelLoading, ShuttingDown
from maple.http.refused import (
    BodyCorrupt,
    BodyTimeout,
    OriginNotAllowed,
    PayloadTooLarge,
    TooManyBodies,
    UnsupportedMediaType,
)

JSON = "application/json"
EVENTS = "text/event-stream"
TEXT = "text/plain"

Refusals = tuple[type[Exception], ...]
Contents = Mapping[str, Schema]
"""Media type → schema."""

ERROR_REFERENCE: Schema = {"$ref": "#/components/schemas/Error"}
ANY_ID: Schema = {"type": "string", "minLength": 1}
BODY: Refusals = (
    OriginNotAllowed,
    InvalidJson,
    BodyCorrupt,
    BodyTimeout,
    PayloadTooLarge,
    UnsupportedMediaType,
    TooManyBodies,
)
REQUEST_CODES: Mapping[type[Exception], str] = {
    InvalidJson: "invalid_json",
    ModelNotFound: "model_not_found",
}
"""The codes of errors that protocols raise, where a kind of error has one code."""
ENGINE: Refusals = (ShuttingDown, ModelLoading, ModelFailed)


@attrs.frozen(kw_only=True)
class Operation:
    """One method of one route. ``answers`` are the good ones, by status."""

    summary: str
    tag: str
    answers: Mapping[int, Contents]
    refusals: Refusals = ()
    request: Schema | None = None
    request_required: bool = True
    parameter: Schema = attrs.field(factory=lambda: dict(ANY_ID))
    """The schema of the path's parameter, where it has one."""
    query: type | None = None
    needs_key: bool = True


Operations = Mapping[str, Operation]
"""Method in lower case → operation."""


def json_of(kind: type) -> Contents:
    """An answer in JSON, by its table."""
    return {JSON: answer_schema(kind)}


def event_stream(data: Schema) -> Schema:
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


def first_sentence(kind: Any) -> str:
    """What a class's docstring says first; its own, or the nearest base's."""
    return re.split(r"(?<=[.:])\s", inspect.getdoc(kind) or "", maxsplit=1)[0].replace("``", "`")
