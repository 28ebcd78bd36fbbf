"""The API's description, OpenAPI 3.1: made from the route table, the field tables and the table of errors."""

from __future__ import annotations

import http
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from maple_protocols.adapter import JsonObject
from maple_protocols.errors import ErrorBody, RequestError
from maple_protocols.reading import reading
from maple_protocols.rules import Schema
from maple_protocols.schema import answer_schema, schema_of
from maple_protocols.strict import table

from maple.http.api_operation import (
    ERROR_REFERENCE,
    JSON,
    REQUEST_CODES,
    Contents,
    Operation,
    Operations,
    Refusals,
    first_sentence,
)
from maple.http.application import Route
from maple.http.error_table import TABLE
from maple.http.operations import MetricsHandler
from maple.http.refused import HostNotAllowed, InvalidKey
from maple.http.services import Services

VERSION = "3.1.0"
ABOUT = (
    "Every answer carries `X-Request-Id`. HEAD works wherever GET does, and OPTIONS everywhere. "
    "An unknown path is 404 `route_not_found`; a wrong method is 405 `method_not_allowed`, with the "
    "right ones in `Allow`."
)
HEADERS: Mapping[str, JsonObject] = {
    "X-Request-Id": {"description": "The client's own, or a fresh UUID.", "schema": {"type": "string"}},
    "X-Maple-Ignored": {
        "description": "What had no effect: field paths without indices, comma-separated.",
        "schema": {"type": "string"},
    },
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}},
    "WWW-Authenticate": {"description": "How to authenticate.", "schema": {"type": "string"}},
    "Location": {"description": "Where to go.", "schema": {"type": "string"}},
}
PARAMETERS: Mapping[str, JsonObject] = {
    "RequestId": {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Comes back, and is in every log line, if it is 1 to 128 visible ASCII characters.",
        "schema": {"type": "string"},
    },
    "SessionId": {
        "name": "X-Session-Id",
        "in": "header",
        "description": "Another way to say `session_id`; what is not fit for one is passed over.",
        "schema": {"type": "string"},
    },
}


def document(routes: Sequence[Route], services: Services) -> JsonObject:
    """The whole description, as JSON."""
    book = _Book(services, routes)
    paths = {
        route.template: methods for route in routes if route.header is None and (methods := book.path(route))
    }
    return {
        "openapi": VERSION,
        "info": {"title": "Maple Server", "version": services.version, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": book.schemas,
            "parameters": dict(PARAMETERS),
            "headers": dict(HEADERS),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "A key, where the server has any."}
            },
        },
    }


class _Book:
    """Writes operations down, and collects the schemas that have a name."""

    def __init__(self, services: Services, routes: Sequence[Route]) -> None:
        self._services = services
        self._routes = routes
        self.schemas: dict[str, Schema] = {"Error": _error_schema()}

    def path(self, route: Route) -> JsonObject:
        """All methods of a route."""
        found = _operations(route, self._services)
        return {method: self._operation(route, method, each) for method, each in found.items()}

    def _operation(self, route: Route, method: str, operation: Operation) -> JsonObject:
        spoken: JsonObject = {
            "operationId": _operation_id(method, route),
            "summary": operation.summary,
            "tags": [operation.tag],
            "security": self._security(route, operation),
            "parameters": _parameters(route, operation),
            "responses": self._responses(route, operation),
        }
        if operation.request is not None:
            content = {JSON: {"schema": self._named(operation.request)}}
            spoken["requestBody"] = {"required": operation.request_required, "content": content}
        return spoken

    def _security(self, route: Route, operation: Operation) -> list[JsonObject]:
        """A key is needed, or (the server has none) taken all the same."""
        if not self._asks_for_key(route, operation):
            return []
        return [{"key": []}] if self._services.keyring.required else [{}, {"key": []}]

    def _asks_for_key(self, route: Route, operation: Operation) -> bool:
        public = route.handler is MetricsHandler and self._services.settings.metrics_public
        return operation.needs_key and not public

    def _responses(self, route: Route, operation: Operation) -> JsonObject:
        found: dict[str, JsonObject] = {
            str(status): self._answer(status, contents, operation)
            for status, contents in operation.answers.items()
        }
        if operation.request is not None and (links := self._links(route)):
            found["200"]["links"] = links
        keys: Refusals = (InvalidKey,) if self._asks_for_key(route, operation) else ()
        for status, kinds in _by_status((HostNotAllowed, *keys, *operation.refusals)).items():
            found[str(status)] = _refusal(kinds, own_shape=hasattr(route.options.get("adapter"), "refusal"))
        return dict(sorted(found.items()))

    def _links(self, route: Route) -> JsonObject:
        """What can be done with the id of an answer that was kept."""
        below = [each for each in self._routes if each.template.startswith(f"{route.template}/{{id}}")]
        names = [
            _operation_id(method, each) for each in below for method in _operations(each, self._services)
        ]
        return {name: {"operationId": name, "parameters": {"id": "$response.body#/id"}} for name in names}

    def _answer(self, status: int, contents: Contents, operation: Operation) -> JsonObject:
        named = {kind: {"schema": self._named(schema)} for kind, schema in contents.items()}
        headers = ["X-Request-Id", *(["Location"] if status == http.HTTPStatus.FOUND else [])]
        headers += ["X-Maple-Ignored"] if operation.tag == "Generation" else []
        spoken: JsonObject = {"description": http.HTTPStatus(status).phrase, "headers": _headers(headers)}
        return spoken | ({"content": named} if named else {})

    def _named(self, schema: Schema) -> Schema:
        """A reference to the schema where it has a title; another schema of that title stays where it is."""
        inner = _map_schemas(schema, self._named)
        title = inner.get("title")
        if not isinstance(title, str) or self.schemas.setdefault(title, inner) != inner:
            return inner
        return {"$ref": f"#/components/schemas/{title}"}


def _operations(route: Route, services: Services) -> Operations:
    policy = services.settings.policy
    with reading(extended=policy.extended):  # what some fields take goes by the level
        return route.handler.operations(route, policy)


def _map_schemas(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """The schema with each of those directly inside it changed."""
    found: dict[str, Any] = dict(schema)
    for key, value in found.items():
        if key == "properties":
            found[key] = {name: change(each) for name, each in value.items()}
        elif key in ("anyOf", "allOf"):
            found[key] = [change(each) for each in value]
        elif key in ("items", "contentSchema"):
            found[key] = change(value)
    return found


def _operation_id(method: str, route: Route) -> str:
    return re.sub(r"\W+", "_", f"{method}{route.template}").strip("_")


def _error_schema() -> Schema:
    """All four keys are always there."""
    body = answer_schema(ErrorBody)
    properties = {field.name: schema_of(field.annotation, answer=True) for field in table(ErrorBody)}
    error = body | {"properties": properties, "required": list(properties)}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}


def _by_status(kinds: Iterable[type[Exception]]) -> dict[int, list[type[Exception]]]:
    found: dict[int, list[type[Exception]]] = {}
    for kind in dict.fromkeys(kinds):
        status = kind.status if issubclass(kind, RequestError) else TABLE[kind].status
        found.setdefault(status, []).append(kind)
    return found


def _refusal(kinds: Sequence[type[Exception]], *, own_shape: bool) -> JsonObject:
    """One status: what it may mean, and the headers that tell more. A protocol may have errors of its own shape."""
    told = {name for kind in kinds if kind in TABLE for name in TABLE[kind].header_names}
    return {
        "description": "\n\n".join(map(_meaning, kinds)),
        "headers": _headers(name for name in HEADERS if name == "X-Request-Id" or name in told),
        "content": {JSON: {"schema": {"type": "object"} if own_shape else ERROR_REFERENCE}},
    }


def _meaning(kind: type[Exception]) -> str:
    code = TABLE[kind].code if kind in TABLE else REQUEST_CODES.get(kind)
    return f"`{code}`: {first_sentence(kind)}" if code else first_sentence(kind)


def _headers(names: Iterable[str]) -> JsonObject:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _parameters(route: Route, operation: Operation) -> list[JsonObject]:
    found: list[JsonObject] = []
    if route.parameter is not None:
        found.append({"name": "id", "in": "path", "required": True, "schema": operation.parameter})
    for field in table(operation.query) if operation.query else ():
        schema = schema_of(field.annotation)
        spoken: JsonObject = {"name": field.name, "in": "query", "description": schema.pop("description", "")}
        found.append(spoken | {"schema": schema})
    names = ["RequestId", *(["SessionId"] if operation.tag == "Generation" else [])]
    references: list[JsonObject] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    return [*found, *references]
