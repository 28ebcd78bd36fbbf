"""Write docs/api.md from the description that a server makes of itself; a test keeps the two equal.

usage: curl -s http://127.0.0.1:8000/openapi.json | python tools/api_page.py
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "protocols"), str(ROOT / "plugins")]

from maple_protocols.errors import InvalidField, ModelNotFound, RequestError  # noqa: E402
from maple_protocols.json import InvalidJson  # noqa: E402

from maple.http.error_table import INVALID_REQUEST, TABLE  # noqa: E402

PAGE = ROOT / "docs" / "api.md"
EVENTS = "text/event-stream"
Schema = Mapping[str, Any]

INTRODUCTION = """# API reference

Every route, with what it takes, gives and refuses. It is made from the description that the server makes of itself:
`/openapi.json` for programs, `/docs` to read it in a browser. Samples are in the [quickstart](quickstart.md) and under
[clients](clients.md), the settings named here (`MAPLE_…`) in [configuration](configuration.md).

## Requests

- Where the server has a key, send `Authorization: Bearer KEY`. Routes marked *open* need none.
- A body is one JSON object, in UTF-8, with `Content-Type: application/json`, of at most 16 MiB; gzip and deflate are
  read. `X-Session-Id` is another way to say `session_id`.
- null means absent. Types are strict: true is no integer, neither is 2.0, and "1" is no number.
- Unknown fields at the top are ignored on chat and completions, and refused on responses at the reference level;
  `MAPLE_STRICT_FIELDS` says otherwise. Unknown fields further down are ignored. null is no field.
- `MAPLE_API_LEVEL=extended` (`--api-level extended`) serves what real clients send and the reference refuses: tools of
  every kind on responses, parts that are no text, half-written arguments in a history, `max_tokens: -1`, further spellings
  of `tool_choice`. A refusal that it would lift says so.
- HEAD works wherever GET does. One slash at the end of a path is ignored.
- `model` is echoed, and needs to be right only with `MAPLE_STRICT_MODEL`.

## Answers

- `X-Request-Id` is the client's own, where it is 1 to 128 visible ASCII characters, or a fresh one. All log lines of a
  request carry it.
- A stream is `text/event-stream`: events of one JSON object each, `: ping` every 10 s of silence (on responses a
  repeated `response.in_progress`), `[DONE]` at the end. An error after the status line is an event of its own, before `[DONE]`. A stream adds up to exactly the whole answer.
- Reasoning is `reasoning_content` in chat, an item of type `reasoning` in responses, and never in `content`. A
  `finish_reason` is `length` where a limit cut the text, else `tool_calls` where there is a call, else `stop`.
- Who leaves cancels: the generation ends within a token.

- `X-Maple-Ignored` names what a request held without effect: field paths without indices, comma-separated
  (`user,input[].image`), at most 512 bytes and then `…`. The log says it too.
- What no retry can help carries `x-should-retry: false`.

## Errors

```json
{"error": {"message": "n must be 1", "type": "invalid_request_error", "param": "n", "code": null}}
```

All four keys are always there; `param` is the path of the field that is wrong. `Retry-After` comes with the refusals
that pass by themselves. Checks are made in this order: path, method, host, key, loading, content type and size, JSON,
fields, model, length of the prompt, queue.

| status | type | code | when |
|---|---|---|---|
"""
TAGS = ("Generation", "Models", "Sessions", "Stored responses", "Operations", "Pages")
WHEN = {
    (
        400,
        "context_length_exceeded",
    ): "The prompt is longer than `MAPLE_MAX_PROMPT_TOKENS`, or fills the window.",
    (
        400,
        "invalid_json",
    ): "The body is not one JSON object that every reader understands alike, or cannot be inflated.",
    (
        400,
        "invalid_parameter",
    ): "A field of responses or sessions is wrong, or, on any route, unknown and refused.",
    (400, None): "A field of chat or completions is wrong, or the chat template refuses the conversation.",
    (401, "invalid_api_key"): "The key is missing or wrong.",
    (
        403,
        "host_not_allowed",
    ): "The server has no key and was called by a name that is not in `MAPLE_ALLOWED_HOSTS`.",
    (
        403,
        "origin_not_allowed",
    ): "A page of another site asked: it is not in `MAPLE_ALLOWED_ORIGINS`, and no valid key came with it.",
    (404, "model_not_found"): "Another model was named, and `MAPLE_STRICT_MODEL` is set.",
    (
        404,
        "not_found",
    ): "There is no such session, stored response or running answer, or it is another key's.",
    (404, "route_not_found"): "No route has this path; the message names the nearest one.",
    (405, "method_not_allowed"): "The route has other methods, which `Allow` lists.",
    (408, "request_timeout"): "The body did not arrive within `MAPLE_BODY_TIMEOUT`.",
    (409, "format_mismatch"): "The session was saved by another model or in another format.",
    (
        409,
        "not_thinking",
    ): "The answer is past its reasoning, has none, or its parser does not tell how it ends.",
    (409, "session_elsewhere"): "The session was saved on a machine of the cluster that does not answer.",
    (413, "payload_too_large"): "The body is larger than 16 MiB, as sent or as inflated.",
    (415, "unsupported_media_type"): "The body is not declared as JSON, or its encoding is not read.",
    (422, "tampered"): "The saved session was changed or is damaged; nothing of it was loaded.",
    (500, None): "Generation, the chat template or the response store failed; the log says how.",
    (501, "not_supported"): "The route is known, and is none that this server could answer.",
    (501, "not_configured"): "`MAPLE_SESSION_DIR` or `MAPLE_RESPONSE_STORE` is not set.",
    (
        503,
        "engine_overloaded",
    ): "Too many requests wait, this one waited too long, or the budget of docs/security.md is spent.",
    (503, "model_failed"): "The model could not be loaded; `/health` says why.",
    (503, "model_loading"): "The model is still loading.",
    (503, "replica_lost"): "The replica of a cluster that made this answer has gone; ask again.",
    (503, "shutting_down"): "The server ends; another one may be there.",
    (507, "storage_full"): "There is no room to save; what was saved before is intact.",
}
"""What each error means to a client. One that is missing here stops the page from being written."""
NOTES = {
    "POST /v1/chat/completions": """A stream is a chunk with the role, then `reasoning_content`, then `content` and whole
`tool_calls` as they come, then a chunk with the `finish_reason`, then one with `usage` and no choices if asked for.""",
    "POST /v1/completions": """The prompt is taken as it is: no chat template, no reasoning, no parsing; control tokens
in it are control tokens.""",
    "POST /v1/responses": """The events of a stream: `response.created` and `response.in_progress`; for each item
`response.output_item.added` and `response.output_item.done`; within a message `response.content_part.added`,
`response.output_text.delta`, `response.output_text.done` and `response.content_part.done`; within reasoning
`response.reasoning_text.delta` and `response.reasoning_text.done`; within a call `response.function_call_arguments.delta`
and `response.function_call_arguments.done`; at the end `response.completed`, `response.incomplete` or
`response.failed`.""",
    "GET /ui": "Not there with `MAPLE_UI=false`, nor is what belongs to it.",
    "GET /metrics": "What the names mean is in [operations](operations.md).",
}
BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "minLength": "length ≥ {}",
    "maxLength": "length ≤ {}",
    "minItems": "items ≥ {}",
    "maxItems": "items ≤ {}",
    "pattern": "matches `{}`",
}
FAR = 2**63 - 1
"""Bounds of 64-bit integers go without saying."""


def page(document: Schema) -> str:
    """The whole page."""
    told: dict[str, str] = {}
    sections: dict[str, list[str]] = {tag: [] for tag in TAGS}
    for tag in TAGS:
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if operation["tags"] == [tag]:
                    name = f"{method.upper()} {path}"
                    sections[tag].append("\n".join(_Operation(document, name, operation, told).lines()))
    text = [f"## {tag}\n\n" + "\n\n".join(operations) for tag, operations in sections.items()]
    return f"{INTRODUCTION}{_errors()}\n\n" + "\n\n".join(text) + "\n"


def _errors() -> str:
    """A row for each status and code; raises KeyError for one that has no words."""
    raised: list[RequestError] = [InvalidJson(""), ModelNotFound("")]
    kinds = {(each.status, each.body.code): each.body.type for each in raised}
    kinds |= {(InvalidField.status, code): INVALID_REQUEST for code in ("invalid_parameter", None)}
    kinds |= {(row.status, row.code): row.type for row in TABLE.values()}
    rows = sorted(kinds, key=lambda key: (key[0], key[1] or ""))
    return "\n".join(
        _row(str(status), kinds[status, code], f"`{code}`" if code else "null", WHEN[status, code])
        for status, code in rows
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


@attrs.define
class _Operation:
    """Writes one operation down; a shape that came before is named, not repeated."""

    document: Schema
    name: str
    operation: Schema
    told: dict[str, str]
    """Named schemas → the route under which they are told, over the whole page."""
    seen: dict[str, str] = attrs.field(factory=dict)
    """Objects → the field under which they are told, in this operation."""

    def lines(self) -> Iterator[str]:
        """The parts of the section."""
        is_open = not self.operation["security"]
        yield f"### {self.name}\n"
        yield re.sub(r":$", ".", self.operation["summary"]) + (" *Open.*" if is_open else "")
        if self.name in NOTES:
            yield f"\n{NOTES[self.name]}"
        if self.operation["tags"] != ["Pages"]:
            yield from self._table("Parameters", self._parameters(), "parameter")
            yield from self._contents("Body", self.operation.get("requestBody", {}), answer=False)
            for status, response in self.operation["responses"].items():
                if not _is_refusal(response):
                    yield from self._contents(f"Answer {status}", response, answer=True)
        if refusals := ", ".join(self._refusals()):
            yield f"\nRefused with {refusals}."

    def _parameters(self) -> Iterator[str]:
        for parameter in self.operation["parameters"]:
            if "$ref" not in parameter:  # those of many routes are told once, above
                where = f"`{parameter['name']}` (in the {parameter['in']})"
                yield _row(where, _type(parameter["schema"]), parameter.get("description", ""))

    def _contents(self, title: str, holder: Schema, *, answer: bool) -> Iterator[str]:
        for kind, content in holder.get("content", {}).items():
            words = f"{title}, `{kind}`" + (", each event" if kind == EVENTS else "")
            inner = self._events(content["schema"]) if kind == EVENTS else content["schema"]
            where = self.told.get(inner.get("$ref", ""))
            schema = self._resolve(inner)
            self.told |= {inner["$ref"]: self.name} if "$ref" in inner and not where else {}
            if where:
                yield f"\n{words}: as {'above' if where == self.name else f'under {where}'}."
            elif rows := list(self._fields(schema, "", answer=answer)):
                yield from self._table(words, rows)
            else:
                yield f"\n{words}: {schema.get('description') or _type(schema)}"

    def _events(self, schema: Schema) -> Schema:
        """The JSON of a stream's events; the error is told once, above."""
        members = self._resolve(schema)["properties"]["data"].get("anyOf", [])
        return next((each["contentSchema"] for each in members if "contentSchema" in each), {})

    def _table(self, title: str, rows: Iterable[str], first: str = "field") -> Iterator[str]:
        if found := list(rows):
            yield f"\n{title}:\n\n| {first} | type | |\n|---|---|---|"
            yield from found

    def _fields(self, schema: Schema, path: str, *, answer: bool) -> Iterator[str]:
        """A row for each field of an object, or of each kind of object, those further down included."""
        variants = self._objects(schema)
        for variant, label in zip(variants, _labels(variants), strict=True):
            inside = f"{path}[{label}]" if label or _is_list(schema) else path
            yield from self._object(variant, inside, answer=answer)

    def _object(self, schema: Schema, path: str, *, answer: bool) -> Iterator[str]:
        required = () if answer else schema.get("required", ())
        for name, field in schema["properties"].items():
            whole = f"{path}.{name}" if path else name
            known = self._known(field, whole)
            said = field.get("description", "")
            needed = "**Required.**" if name in required and not said.startswith("Required") else ""
            words = " ".join(filter(None, (needed, said, f"As `{known}` above." if known else "")))
            yield _row(f"`{whole}`", _type(field, nullable=answer), words.replace("\n", " "))
            if not known:
                yield from self._fields(field, whole, answer=answer)

    def _known(self, field: Schema, path: str) -> str | None:
        """Where the objects in a field were told; they are told under ``path`` if they are new."""
        inner = self._objects(field)
        spelled = json.dumps([each["properties"] for each in inner], sort_keys=True)
        if not inner or spelled in self.seen:
            return self.seen.get(spelled)
        self.seen[spelled] = path
        return None

    def _objects(self, schema: Schema) -> list[Schema]:
        """The kinds of object that a value may be or hold, each once."""
        found = {json.dumps(each, sort_keys=True): each for each in self._all_objects(schema)}
        return list(found.values())

    def _all_objects(self, schema: Schema) -> Iterator[Schema]:
        found = self._resolve(schema)
        if "properties" in found:
            yield found
        for key in ("anyOf", "allOf"):
            for member in found.get(key, ()):
                yield from self._all_objects(member)
        if "items" in found:
            yield from self._all_objects(found["items"])

    def _resolve(self, schema: Schema) -> Schema:
        if "$ref" not in schema:
            return schema
        found: Any = self.document
        for key in schema["$ref"].split("/")[1:]:
            found = found[key]
        return dict(found)

    def _refusals(self) -> Iterator[str]:
        for status, response in self.operation["responses"].items():
            if _is_refusal(response):
                codes = dict.fromkeys(re.findall(r"`([a-z_]+)`: ", response["description"]))
                yield " ".join([status, *(f"`{code}`" for code in codes)])


def _is_refusal(response: Schema) -> bool:
    """Whether an answer is an error, which are told once, above."""
    contents = response.get("content", {}).values()
    return any(content["schema"].get("$ref", "").endswith("/Error") for content in contents)


def _is_list(schema: Schema) -> bool:
    return schema.get("type") == "array" or any(map(_is_list, schema.get("anyOf", ())))


def _labels(variants: list[Schema]) -> list[str]:
    """What tells one kind of object from another: the type where that is enough, else the role."""
    if len(variants) == 1:
        return [""]
    types = [_words(variant, "type") for variant in variants]
    if len({*types, ""}) > len(types):
        return types
    labels = [_words(variant, "role") or kind for variant, kind in zip(variants, types, strict=True)]
    return [
        label if not label or label not in labels[:place] else f"{label}, {labels[:place].count(label) + 1}"
        for place, label in enumerate(labels)
    ]


def _words(schema: Schema, name: str) -> str:
    return "/".join(map(str, schema["properties"].get(name, {}).get("enum", [])))


def _type(schema: Schema, *, nullable: bool = False) -> str:
    words = [word for word in dict.fromkeys(_alternatives(schema)) if nullable or word != "null"]
    return ", ".join([" or ".join(words or ["anything"]), *dict.fromkeys(_bounds(schema))])


def _alternatives(schema: Schema) -> Iterator[str]:
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2]
    elif "enum" in schema:
        yield from (f"`{json.dumps(word)}`" for word in schema["enum"])
    elif "const" in schema:
        yield f"`{json.dumps(schema['const'])}`"
    elif "anyOf" in schema:
        for member in schema["anyOf"]:
            yield from _alternatives(member)
    elif schema.get("type") == "array":
        items = " or ".join(dict.fromkeys(_alternatives(schema.get("items", {}))))
        yield f"list of {items}" if items else "list"
    else:
        kinds = schema.get("type", [])
        yield from [kinds] if isinstance(kinds, str) else kinds


def _bounds(schema: Schema) -> Iterator[str]:
    for key, words in BOUNDS.items():
        if key in schema and not (isinstance(schema[key], int) and abs(schema[key]) >= FAR):
            yield words.format(schema[key])
    for member in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())):
        if "properties" not in member:
            yield from _bounds(member)


if __name__ == "__main__":
    PAGE.write_text(page(json.load(sys.stdin)), encoding="utf-8")
