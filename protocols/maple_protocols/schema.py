"""JSON Schema (2020-12, as in OpenAPI 3.1) of a field table: the same table that validation reads."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import attrs

from maple_protocols.rules import INT64_MAX, INT64_MIN, Doc, Rule, Schema, Shape
from maple_protocols.strict import table

_PLAIN: dict[object, Schema] = {
    object: {},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer", "format": "int64", "minimum": INT64_MIN, "maximum": INT64_MAX},
}


def json_schema(cls: type, *, closed: bool = False) -> Schema:
    """The schema of a body. ``closed`` says that unknown top-level fields are refused."""
    schema = _object(cls)
    return schema | {"additionalProperties": False} if closed else schema


def _object(cls: Any) -> Schema:
    fields = table(cls)
    properties = {
        field.name: schema_of(field.annotation) if field.required else _nullable(schema_of(field.annotation))
        for field in fields
    }
    required = [field.name for field in fields if field.required]
    schema: Schema = {"type": "object", "description": cls.__doc__, "properties": properties}
    return schema | {"required": required} if required else schema


def _nullable(schema: Schema) -> Schema:
    """Null means absent for every optional field. A schema that takes anything takes null already."""
    said = {key: value for key, value in schema.items() if key == "description"}
    rest = {key: value for key, value in schema.items() if key != "description"}
    return said | ({"anyOf": [rest, {"type": "null"}]} if rest else {})


def schema_of(annotation: Any) -> Schema:
    """The schema of one annotation, its rules and docs included."""
    if attrs.has(annotation):
        return _object(annotation)
    if annotation in _PLAIN:
        return dict(_PLAIN[annotation])
    return _BY_ORIGIN[get_origin(annotation)](annotation)


def _annotated(annotation: Any) -> Schema:
    base, *notes = get_args(annotation)
    shapes = [note.schema() for note in notes if isinstance(note, Shape)]
    schema = shapes[0] if shapes else schema_of(base)
    for note in notes:
        if isinstance(note, Rule):
            schema |= note.schema()
        if isinstance(note, Doc):
            schema |= {"description": note.text}
    return schema


def _union(annotation: Any) -> Schema:
    members = [schema_of(member) for member in get_args(annotation) if member is not type(None)]
    return {"anyOf": members} if len(members) > 1 else members[0]


_BY_ORIGIN: dict[Any, Callable[[Any], Schema]] = {
    tuple: lambda annotation: {"type": "array", "items": schema_of(get_args(annotation)[0])},
    Mapping: lambda _: {"type": "object"},
    Literal: lambda annotation: {"enum": list(get_args(annotation))},
    Annotated: _annotated,
    typing.Union: _union,
    types.UnionType: _union,
}
