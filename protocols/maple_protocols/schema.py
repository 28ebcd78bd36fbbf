"""JSON Schema (2020-12, as in OpenAPI 3.1) of a field table: the same table that validation reads.

Requests and answers differ in one thing. In a request null means absent, so every optional field takes it; an
answer says null only where its table does.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import attrs

from maple_protocols.rules import INT64_MAX, INT64_MIN, Doc, Rule, Schema, Shape
from maple_protocols.strict import table

NULL: Schema = {"type": "null"}

_PLAIN: dict[object, Schema] = {
    object: {},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer", "format": "int64", "minimum": INT64_MIN, "maximum": INT64_MAX},
    type(None): NULL,
}


def json_schema(cls: type, *, closed: bool = False) -> Schema:
    """The schema of a request's body. ``closed`` says that unknown top-level fields are refused."""
    schema = {"title": cls.__name__, **_object(cls, answer=False)}
    return schema | {"additionalProperties": False} if closed else schema


def answer_schema(cls: type) -> Schema:
    """The schema of an answer: fields without a default are always there, the others at times."""
    return {"title": cls.__name__, **_object(cls, answer=True)}


def schema_of(annotation: Any, *, answer: bool = False) -> Schema:
    """The schema of one annotation, its rules and docs included."""
    if attrs.has(annotation):
        return _object(annotation, answer=answer)
    if annotation in _PLAIN:
        return dict(_PLAIN[annotation])
    return _BY_ORIGIN[get_origin(annotation)](annotation, answer)


def _object(cls: Any, *, answer: bool) -> Schema:
    fields = table(cls)
    change = _present if answer else _nullable
    properties = {
        field.name: schema if field.required else change(schema)
        for field in fields
        for schema in (schema_of(field.annotation, answer=answer),)
    }
    required = [field.name for field in fields if field.required]
    schema: Schema = {"type": "object", "description": cls.__doc__, "properties": properties}
    return schema | {"required": required} if required else schema


def _present(schema: Schema) -> Schema:
    """A field of an answer that need not be there is never null where it is."""
    members = [member for member in cast("list[Schema]", schema.get("anyOf", [])) if member != NULL]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return rest | (members[0] if len(members) == 1 else {"anyOf": members}) if members else schema


def _nullable(schema: Schema) -> Schema:
    """Null means absent for every optional field. A schema that takes anything takes null already."""
    said = {key: value for key, value in schema.items() if key == "description"}
    rest = {key: value for key, value in schema.items() if key != "description"}
    return said | ({"anyOf": [rest, NULL]} if rest else {})


def _annotated(annotation: Any, answer: bool) -> Schema:
    base, *notes = get_args(annotation)
    shapes = [note.schema() for note in notes if isinstance(note, Shape)]
    schema = shapes[0] if shapes else schema_of(base, answer=answer)
    for note in notes:
        if isinstance(note, Rule):
            schema |= note.schema()
        if isinstance(note, Doc):
            schema |= {"description": note.text}
    return schema


def _union(annotation: Any, answer: bool) -> Schema:
    members = [
        schema_of(member, answer=answer)
        for member in get_args(annotation)
        if answer or member is not type(None)
    ]
    return {"anyOf": members} if len(members) > 1 else members[0]


def _list(annotation: Any, answer: bool) -> Schema:
    return {"type": "array", "items": schema_of(get_args(annotation)[0], answer=answer)}


_BY_ORIGIN: dict[Any, Callable[[Any, bool], Schema]] = {
    tuple: _list,
    Mapping: lambda *_: {"type": "object"},
    Literal: lambda annotation, _: {"enum": list(get_args(annotation))},
    Annotated: _annotated,
    typing.Union: _union,
    types.UnionType: _union,
}
