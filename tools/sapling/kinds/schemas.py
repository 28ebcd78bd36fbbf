"""How a tool reaches the model: as an OpenAI client sends it, as generators write it, as real clients do."""

from __future__ import annotations

import random
from typing import Any

import attrs

from tools.sapling.kinds.toolbox import Parameter, Tool
from tools.sapling.tables import table

_UNITS = table("tools")["values"]["units"]
_TOLD = table("clients")["described"]


@attrs.frozen(kw_only=True)
class Style:
    """The keys of an object in the order in which one client writes them, and how it writes what a call may leave out."""

    keys: tuple[str, ...]
    draft: str = "http://json-schema.org/draft-07/schema#"
    nullable: bool = False
    strict: bool = False

    @property
    def alphabetical(self) -> bool:
        """Whether a property's own keys are sorted, too: pydantic does that."""
        return self.keys[0] in ("properties", "additionalProperties")


_CLOSED = ("type", "properties", "required", "additionalProperties")
STYLES = {
    "AI SDK with zod 3, MCP in TypeScript": Style(keys=(*_CLOSED, "$schema")),
    "AI SDK with zod 4": Style(keys=("$schema", *_CLOSED)),
    "newer MCP in TypeScript": Style(
        keys=("$schema", *_CLOSED), draft="https://json-schema.org/draft/2020-12/schema"
    ),
    "MCP by hand": Style(keys=("type", "properties", "required")),
    "MCP in Python": Style(keys=("properties", "required", "title", "type"), nullable=True),
    "LangChain": Style(keys=("properties", "required", "type"), nullable=True),
    "pydantic-ai": Style(keys=("additionalProperties", "properties", "required", "type"), strict=True),
}


def of_client(rng: random.Random, tools: list[Tool]) -> tuple[dict[str, Any], ...]:
    """The tools as one client writes them all."""
    style = rng.choice(list(STYLES.values()))
    return tuple(_function(rng, style, tool) for tool in tools)


def _function(rng: random.Random, style: Style, tool: Tool) -> dict[str, Any]:
    parameters = _object(rng, style, tool.parameters, f"{tool.name}Arguments")
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if not tool.parameters and rng.random() < 0.2:
        del function["parameters"]
    return {"type": "function", "function": function | ({"strict": True} if style.strict else {})}


def _object(
    rng: random.Random, style: Style, parameters: tuple[Parameter, ...], title: str = ""
) -> dict[str, Any]:
    """An object's schema; only the outermost one has a title and names the draft."""
    whole: dict[str, Any] = {
        "type": "object",
        "properties": {parameter.name: _property(rng, style, parameter) for parameter in parameters},
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
        "$schema": style.draft if title else "",
        "title": title,
    }
    written = [key for key in style.keys if whole[key] or key in ("properties", "additionalProperties")]
    return {key: whole[key] for key in written}


def _property(rng: random.Random, style: Style, parameter: Parameter) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": parameter.type}
    if parameter.holds == "object":
        entry = _object(rng, style, parameter.parts)
    elif parameter.holds == "list":
        entry["items"] = {"type": parameter.parts[0].type}
    elif parameter.choices:
        entry["enum"] = list(parameter.choices)
    if style.nullable and not parameter.required:
        entry = {"anyOf": [entry, {"type": "null"}], "default": None}
    if rng.random() < 0.5:
        entry["description"] = rng.choice(_TOLD.get(parameter.holds, _TOLD["any"])).format(p=parameter.name)
    if "title" in style.keys:
        entry["title"] = parameter.name.replace("_", " ").title()
    return dict(sorted(entry.items())) if style.alphabetical else entry


def schema(rng: random.Random, tool: Tool, *, varied: bool = False) -> dict[str, Any]:
    """The tool as an OpenAI client sends it; details that clients leave out are left out at times.

    ``varied`` ones also have the keys and the order of keys that libraries' generators write.
    """
    properties: dict[str, Any] = {}
    detailed = rng.random() < 0.3
    for parameter in tool.parameters:
        properties[parameter.name] = {"type": parameter.type}
        if detailed:
            properties[parameter.name]["description"] = rng.choice(
                (f"The {parameter.name}", f"{parameter.name} to use", f"Which {parameter.name}")
            )
        if parameter.holds == "unit":
            properties[parameter.name]["enum"] = list(_UNITS[:2])
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.85:
        parameters["required"] = [parameter.name for parameter in tool.parameters if parameter.required]
    if rng.random() < 0.05:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if rng.random() < 0.05:
        del function["description"]
    if varied and rng.random() < 0.3:
        _generated(rng, function)
    return {"type": "function", "function": function}


def _generated(rng: random.Random, function: dict[str, Any]) -> None:
    """The function as a library makes it of a typed Python function: properties first, the type last, titles at times."""
    plain = function["parameters"]
    titled = rng.random() < 0.5
    properties = {
        name: {"title": name.replace("_", " ").title(), **entry} if titled else entry
        for name, entry in plain["properties"].items()
    }
    parameters = {"properties": properties, "required": plain.get("required", list(properties))}
    if titled:
        parameters["title"] = f"{function['name']}_args"
    parameters["type"] = "object"
    if rng.random() < 0.5:
        parameters["additionalProperties"] = False
        if rng.random() < 0.5:
            function["strict"] = True
    function["parameters"] = parameters
