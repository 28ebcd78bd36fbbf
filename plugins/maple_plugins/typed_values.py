"""Plain text turned into JSON values by a tool's schema, for formats that write arguments without types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping

from maple_plugins.json_calls import is_json
from maple_plugins.json_scan import NUMBER
from maple_plugins.parser import ToolSpec

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?")
_UNTYPED = ("number", "boolean", "null")


def argument_schemas(tools: Iterable[ToolSpec], name: str) -> Mapping[str, object]:
    """The schemas of a tool's arguments by name; empty where the tool is unknown or declares none."""
    for tool in tools:
        properties = (tool.parameters or {}).get("properties") if tool.name == name else None
        if isinstance(properties, Mapping):
            return properties
    return {}


def json_text(text: str, schema: object) -> str:
    """The JSON text of a value by its schema.

    Without a schema that names types, a JSON number, true, false and null are that and anything else is a
    string. With one, text that fits none of its types is a string too.
    """
    types = schema_types(schema)
    trimmed = text.strip()
    for name in _UNTYPED if types is None else types:
        read = _READERS.get(name)
        value = None if read is None else read(trimmed if types is None else _spelled_in_json(trimmed, name))
        if value is not None:
            return value
    return json.dumps(text, ensure_ascii=False)


def object_text(members: Mapping[str, str]) -> str:
    """The JSON text of an object whose values are JSON texts."""
    pairs = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items())
    return "{" + ", ".join(pairs) + "}"


def schema_types(schema: object) -> tuple[str, ...] | None:
    """The types that a JSON Schema allows, in its order; None where it does not say."""
    if not isinstance(schema, Mapping):
        return None
    declared = schema.get("type")
    if isinstance(declared, str):
        return (declared,)
    if isinstance(declared, list):
        return tuple(name for name in declared if isinstance(name, str))
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        if isinstance(branches, list):
            return tuple(name for branch in branches for name in schema_types(branch) or ()) or None
    return _types_of_values(schema)


def _types_of_values(schema: Mapping[str, object]) -> tuple[str, ...] | None:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list):
        return None
    return tuple(_TYPE_NAMES.get(type(value), "string") for value in values) or None


def _spelled_in_json(text: str, type_name: str) -> str:
    """True, False and None, which templates of this family write, as JSON where the schema wants them."""
    spelled = {"boolean": text.lower(), "null": "null" if text == "None" else text}
    return spelled.get(type_name, text)


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    return lambda text: text if pattern.fullmatch(text) else None


_READERS: Mapping[str, Callable[[str], str | None]] = {
    "number": _matching(NUMBER),
    "integer": _matching(_INTEGER),
    "boolean": _matching(re.compile("true|false")),
    "null": _matching(re.compile("null")),
    "object": lambda text: text if is_json(text, "{") else None,
    "array": lambda text: text if is_json(text, "[") else None,
}
_TYPE_NAMES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}
