"""Tools of /v1/responses: what the model is shown of each kind, and how its calls go out again.

The model knows functions only. A custom tool is one with a single string, a shell is one by its schema, and a
namespace's tools are functions side by side. What the vendor would run itself, nobody runs here: it is dropped.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import attrs
from typing_extensions import override

from maple_protocols.openai.tools import (
    FunctionTool,
    ToolName,
    ToolParameters,
    known_function_keys,
    nested,
)
from maple_protocols.reading import drop, is_extended, unserved
from maple_protocols.rules import Misfit, Schema, Shape, each, mapping
from maple_protocols.schema import schema_of
from maple_protocols.strict import read

CallKind = Literal["function", "custom", "local_shell"]
_INPUT: Mapping[str, object] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_STRINGS: Mapping[str, object] = {"type": "array", "items": {"type": "string"}}
_SHELL: Mapping[str, object] = {
    "name": "local_shell",
    "description": "Run a command on the user's machine.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": _STRINGS,
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
    },
}


@attrs.frozen(kw_only=True)
class FlatTool:
    """A tool in the flat shape of responses."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: ToolParameters = None


@attrs.frozen(kw_only=True)
class CustomTool:
    """A tool that takes free text."""

    type: Literal["custom"]
    name: ToolName
    description: str | None = None


@attrs.frozen(kw_only=True)
class CallForm:
    """How a call of one tool goes out: under its own name, in its own shape."""

    kind: CallKind = "function"
    name: str
    namespace: str | None = None


@attrs.frozen(kw_only=True)
class Offered:
    """One tool. ``tool`` is what the model sees, in the nested shape; ``echo`` is what the response repeats."""

    form: CallForm
    tool: Mapping[str, Any]
    echo: Mapping[str, object]

    @property
    def shown(self) -> str:
        """The name that the model knows."""
        return str(self.tool["function"]["name"])


@attrs.frozen
class ToolShape(Shape):
    """A function, flat or nested as on chat; at the extended level any tool. Comes out as what it offers."""

    @override
    def structure(self, value: object) -> tuple[Offered, ...]:
        raw = mapping(value)
        kind = raw.get("type")
        if kind == "function" or kind is None or not isinstance(kind, str) or "function" in raw:
            return (_function(raw),)
        if not is_extended():
            raise unserved("must be function", "type")
        match kind:
            case "custom":
                return (_custom(raw),)
            case "local_shell":
                form = CallForm(kind="local_shell", name="local_shell")
                return (Offered(form=form, tool=_nested(_SHELL), echo={"type": "local_shell"}),)
            case "namespace":
                return self._namespace(raw)
        drop("tools[]", kind)
        return ()

    def _namespace(self, raw: Mapping[str, Any]) -> tuple[Offered, ...]:
        name, tools = raw.get("name"), raw.get("tools")
        if not isinstance(name, str) or not name:
            raise Misfit("must be a string that is not empty", "name")
        if not isinstance(tools, list):
            raise Misfit("must be a list", "tools")
        try:
            found = [tool for inner in each(tools, self.structure) for tool in inner]
        except Misfit as misfit:
            raise misfit.under("tools") from None
        return tuple(attrs.evolve(tool, form=attrs.evolve(tool.form, namespace=name)) for tool in found)

    @override
    def schema(self) -> Schema:
        return {"anyOf": [schema_of(FlatTool), schema_of(FunctionTool)]}


Tools = Annotated[tuple[Offered, ...], ToolShape()]


def _function(raw: dict[str, Any]) -> Offered:
    if raw.get("function") is not None:
        read(FunctionTool, raw)
        tool = nested(raw)
    else:
        read(FlatTool, raw)
        tool = _nested(known_function_keys(raw))
    # Strict is always false: it is what the server does.
    optional = {"description": None, "parameters": None}
    echo = {"type": "function", **optional, **tool["function"], "strict": False}
    return Offered(form=CallForm(name=tool["function"]["name"]), tool=tool, echo=echo)


def _custom(raw: dict[str, Any]) -> Offered:
    custom: CustomTool = read(CustomTool, raw)
    shown = {"name": custom.name, "description": custom.description or "", "parameters": _INPUT}
    echo = {key: value for key, value in raw.items() if key in ("type", "name", "description", "format")}
    return Offered(form=CallForm(kind="custom", name=custom.name), tool=_nested(shown), echo=echo)


def _nested(function: Mapping[str, object]) -> Mapping[str, Any]:
    return {"type": "function", "function": function}


def named_apart(groups: Iterable[tuple[Offered, ...]]) -> tuple[Offered, ...]:
    """All tools; where several have one name, those in a namespace are shown under a name of both."""
    tools = [tool for group in groups for tool in group]
    counts = collections.Counter(tool.form.name for tool in tools)
    taken = set(counts)
    found: list[Offered] = []
    for tool in tools:
        if tool.form.namespace is None or counts[tool.form.name] == 1:
            found.append(tool)
            continue
        name = f"{tool.form.namespace}__{tool.form.name}"
        while name in taken:
            name += "_"
        taken.add(name)
        found.append(attrs.evolve(tool, tool=_nested({**tool.tool["function"], "name": name})))
    return tuple(found)


def naming(forms: Mapping[str, CallForm]) -> Callable[[str, str | None], str]:
    """The name under which the model made a call that comes back in a history, by its own and its namespace."""
    shown = {(form.name, form.namespace): name for name, form in forms.items()}
    return lambda name, namespace: shown.get((name, namespace), name)


def custom_input(arguments: str) -> str:
    """What a custom tool is given: the one string, or all of the model's text where it wrote something else."""
    found = _object(arguments)
    given = found.get("input")
    return given if isinstance(given, str) and len(found) == 1 else arguments


def shell_action(arguments: str) -> dict[str, object]:
    """What a shell is to do, in the item's shape. A command in one string is for a shell of its own."""
    found = _object(arguments)
    command = found.get("command")
    words = command if isinstance(command, list) else ["bash", "-lc", str(command or arguments)]
    rest: dict[str, object] = {key: found[key] for key in ("working_directory", "timeout_ms") if key in found}
    return {"type": "exec", "command": [str(word) for word in words], "env": {}, **rest}


def _object(arguments: str) -> dict[str, Any]:
    try:
        found = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
