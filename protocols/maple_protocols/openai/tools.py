"""Tool definitions and the choice among them, for every route that offers tools to the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal

import attrs
from maple_plugins.parser import ToolSpec
from typing_extensions import override

from maple_protocols.ask import ForcedCalls
from maple_protocols.reading import is_extended, unserved
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
    type: str = "function"


@attrs.frozen
class AllowedTools:
    """A choice among some of the tools."""

    mode: Literal["auto", "required"]
    names: frozenset[str]


Choice = ToolMode | ChosenTool | AllowedTools


@attrs.frozen
class ToolChoiceShape(Shape):
    """none, auto, required, or one function by name. Every refusal is blamed on the field itself.

    ``flat`` also takes the name beside the type, as on responses; so does the extended level everywhere, where
    "any", a mode as a type, other tools by name, and allowed_tools are understood, too.
    """

    flat: bool = False

    @override
    def structure(self, value: object) -> Choice:
        for mode in _MODES:
            if value == mode:
                return mode
        name = self._name(value, flat=self.flat)
        if name is not None:
            return ChosenTool(name)
        found = _spoken(value)
        if found is None:
            raise Misfit(_WORDS)
        if not is_extended():
            raise unserved(_WORDS)
        return found

    @staticmethod
    def _name(value: object, *, flat: bool) -> str | None:
        if not isinstance(value, dict) or value.get("type") != "function":
            return None
        holder = value.get("function", value if flat else None)
        name = holder.get("name") if isinstance(holder, dict) else None
        return text(name) if isinstance(name, str) else None

    @override
    def schema(self) -> Schema:
        name: Schema = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
        kind: Schema = {"type": "object", "required": ["type"], "properties": {"type": {"const": "function"}}}
        function: Schema = {"required": ["function"], "properties": {"function": name}}
        named: Schema = {"anyOf": [function, name]} if self.flat else function
        return {"anyOf": [{"enum": list(_MODES)}, kind | {"allOf": [named]}]}


_WORDS = f'{one_of(_MODES)}, {{"type": "function", "function": {{"name": …}}}}'
_TYPES: Mapping[str, ToolMode] = {"any": "required", **{mode: mode for mode in _MODES}}


def _spoken(value: object) -> Choice | None:
    """A choice in a spelling that only the extended level takes."""
    if isinstance(value, str):
        return _TYPES.get(value)
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        return None
    if kind == "allowed_tools":
        inner = value.get("allowed_tools")
        return _allowed(inner if isinstance(inner, dict) else value)
    name = _own_name(value)
    return _TYPES.get(kind) if name is None else ChosenTool(name, kind)


def _allowed(value: Mapping[str, object]) -> AllowedTools | None:
    tools = value.get("tools")
    if not isinstance(tools, list):
        return None
    names = frozenset(name for tool in tools if isinstance(tool, dict) and (name := _own_name(tool)))
    return AllowedTools("required" if value.get("mode") == "required" else "auto", names)


def _own_name(value: Mapping[str, object]) -> str | None:
    for key in ("function", "custom"):
        holder = value.get(key)
        if isinstance(holder, dict) and isinstance(holder.get("name"), str):
            return text(holder["name"])
    name = value.get("name")
    return text(name) if isinstance(name, str) else None


TOOL_CHOICE = Doc(
    "none hides the tools, a named function hides the others; at the extended level required and named force calls."
)
ToolChoice = Annotated[Choice | None, ToolChoiceShape(), TOOL_CHOICE]


def check_choice(choice: Choice, offered: Collection[str]) -> None:
    """A choice that needs tools must have them. Raises Misfit."""
    if isinstance(choice, AllowedTools):
        if not choice.names & set(offered):
            raise Misfit("must name some of the tools")
    elif isinstance(choice, ChosenTool):
        if choice.name not in offered:
            raise Misfit("must name one of the tools")
    elif choice == "required" and not offered:
        raise Misfit("must be none or auto where there are no tools")


def forced(choice: Choice | None, tools: object, parallel: object) -> ForcedCalls | None:
    """What ``choice`` forces at the extended level; ``tools`` as the body has them, for their ``strict``."""
    must = choice == "required" or isinstance(choice, ChosenTool)
    must |= isinstance(choice, AllowedTools) and choice.mode == "required"
    if not must or not is_extended():
        return None
    return ForcedCalls(single=parallel is False, strict=_strict(tools))


def strict_in_vain(choice: ForcedCalls | None, tools: object) -> tuple[str, ...]:
    """``strict`` as it is told among what has no effect: a call that nothing forces is not held to its schema."""
    return ("tools[].strict",) if choice is None and is_extended() and _strict(tools) else ()


def _strict(tools: object) -> frozenset[str]:
    """The names of those functions that are."""
    given = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    functions = [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in given]
    return frozenset(one["name"] for one in functions if one.get("strict") is True and "name" in one)


def is_shown(name: str, choice: Choice | None) -> bool:
    """Whether the model gets to see a tool of that name under ``choice``."""
    if isinstance(choice, AllowedTools):
        return name in choice.names
    return name == choice.name if isinstance(choice, ChosenTool) else choice != "none"


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
