"""Tool definitions and the choice among them, for every route that offers tools to the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal

import attrs
from maple_plugins.parser import ToolSpec
from typing_extensions import override

from maple_protocols.rules import Doc, Length, Misfit, Schema, Shape, one_of, text

ToolName = Annotated[str, Length(least=1)]
ToolParameters = Annotated[Mapping[str, object] | None, Doc("JSON Schema of the arguments.")]
ToolMode = Literal["none", "auto", "required"]
_MODES: tuple[ToolMode, ...] = ("none", "auto", "required")
_FUNCTION_KEYS = frozenset({"name", "description", "parameters"})


@attrs.frozen(kw_only=True)
class FunctionDefinition:
    """What the model may call."""

    name: ToolName
    description: str | None = None
    parameters: ToolParameters = None


@attrs.frozen(kw_only=True)
class FunctionTool:
    """A tool in the nested shape of chat."""

    type: Literal["function"]
    function: FunctionDefinition


@attrs.frozen
class ChosenTool:
    """A choice that names one tool."""

    name: str


@attrs.frozen
class ToolChoiceShape(Shape):
    """none, auto, required, or one function by name. Every refusal is blamed on the field itself.

    ``flat`` also takes the name beside the type, as on responses.
    """

    flat: bool = False

    @override
    def structure(self, value: object) -> ToolMode | ChosenTool:
        for mode in _MODES:
            if value == mode:
                return mode
        name = self._name(value)
        if name is None:
            raise Misfit(f'{one_of(_MODES)}, {{"type": "function", "function": {{"name": …}}}}')
        return ChosenTool(name)

    def _name(self, value: object) -> str | None:
        if not isinstance(value, dict) or value.get("type") != "function":
            return None
        holder = value.get("function", value if self.flat else None)
        name = holder.get("name") if isinstance(holder, dict) else None
        return text(name) if isinstance(name, str) else None

    @override
    def schema(self) -> Schema:
        name: Schema = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
        kind: Schema = {"type": "object", "required": ["type"], "properties": {"type": {"const": "function"}}}
        function: Schema = {"required": ["function"], "properties": {"function": name}}
        named: Schema = {"anyOf": [function, name]} if self.flat else function
        return {"anyOf": [{"enum": list(_MODES)}, kind | {"allOf": [named]}]}


TOOL_CHOICE = Doc("none hides the tools, a named function hides the others; not enforced beyond that.")
ToolChoice = Annotated[ToolMode | ChosenTool | None, ToolChoiceShape(), TOOL_CHOICE]


def check_choice(choice: ToolMode | ChosenTool, offered: Collection[str]) -> None:
    """A choice that needs tools must have them. Raises Misfit."""
    if isinstance(choice, ChosenTool):
        if choice.name not in offered:
            raise Misfit("must name one of the tools")
    elif choice == "required" and not offered:
        raise Misfit("must be none or auto where there are no tools")


def shown(
    tools: Iterable[Mapping[str, Any]], choice: ToolMode | ChosenTool | None
) -> tuple[Mapping[str, Any], ...]:
    """The nested tools that the model gets to see under ``choice``."""
    if choice == "none":
        return ()
    if isinstance(choice, ChosenTool):
        return tuple(tool for tool in tools if tool["function"]["name"] == choice.name)
    return tuple(tools)


def nested(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """A validated tool as the chat template takes it, unknown and null keys left out.

    Keys stay in the client's order: the template spells the tool out as it comes, order and all.
    """
    parts = {"type": raw["type"], "function": known_function_keys(raw["function"])}
    return {key: parts[key] for key in raw if key in parts}


def known_function_keys(raw: Mapping[str, object]) -> Mapping[str, object]:
    """name, description and parameters as far as they are given, in the client's order."""
    return {key: value for key, value in raw.items() if key in _FUNCTION_KEYS and value is not None}


def specs(tools: Iterable[Mapping[str, Any]]) -> tuple[ToolSpec, ...]:
    """Nested tools as parsers see them."""
    functions = [tool["function"] for tool in tools]
    return tuple(ToolSpec(function["name"], function.get("parameters")) for function in functions)
