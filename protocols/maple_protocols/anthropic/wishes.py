"""The members of a messages request that say how to answer: tools, choice, thinking, form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import attrs
from typing_extensions import override

from maple_protocols.ask import AnswerForm
from maple_protocols.openai.forms import FormatShape
from maple_protocols.reading import drop
from maple_protocols.rules import (
    Doc,
    Length,
    Misfit,
    Schema,
    Shape,
    boolean,
    integer,
    mapping,
    one_of,
    text,
)
from maple_protocols.strict import read

LEAST_BUDGET = 1024

CHOICES = ("auto", "any", "tool", "none")


@attrs.frozen
class Tool:
    """A function that the model may call."""

    name: str
    description: str | None
    schema: Mapping[str, object] | None
    strict: bool = False

    @property
    def nested(self) -> Mapping[str, object]:
        """As the chat template takes it."""
        function = {"name": self.name, "description": self.description, "parameters": self.schema}
        return {
            "type": "function",
            "function": {key: value for key, value in function.items() if value is not None},
        }


@attrs.frozen(kw_only=True)
class ToolFields:
    """One of ``tools``."""

    name: Annotated[str, Length(least=1, most=128)]
    description: str | None = None
    input_schema: Annotated[Mapping[str, Any] | None, Doc("JSON Schema of the input.")] = None
    strict: Annotated[bool, Doc("A forced call's input is what the schema allows.")] = False
    type: Annotated[object, Doc("custom, or a server's tool, which is dropped.")] = None


@attrs.frozen
class ToolShape(Shape):
    """A tool of the client's own; None for one that Anthropic's servers would run."""

    @override
    def structure(self, value: object) -> Tool | None:
        kind = mapping(value).get("type")
        if kind not in (None, "custom"):
            drop("tools[]", kind if isinstance(kind, str) else "?")
            return None
        found: ToolFields = read(ToolFields, value)
        return Tool(found.name, found.description, found.input_schema, found.strict)

    @override
    def schema(self) -> Schema:
        return {
            "type": "object",
            "properties": {"name": {"type": "string"}, "input_schema": {"type": "object"}},
        }


@attrs.frozen
class Choice:
    """How tools are chosen."""

    kind: str
    name: str | None = None
    single: bool = False


@attrs.frozen
class ChoiceShape(Shape):
    """auto, any, one tool by name, or none."""

    @override
    def structure(self, value: object) -> Choice:
        found = mapping(value)
        kind = found.get("type")
        if kind not in CHOICES:
            raise Misfit(one_of(CHOICES), "type")
        name = found.get("name")
        if kind == "tool" and not isinstance(name, str):
            raise Misfit("is required", "name")
        single = found.get("disable_parallel_tool_use")
        return Choice(
            str(kind), text(name) if kind == "tool" else None, single is not None and boolean(single)
        )

    @override
    def schema(self) -> Schema:
        return {"type": "object", "required": ["type"], "properties": {"type": {"enum": list(CHOICES)}}}


@attrs.frozen
class Thinking:
    """Whether to think, for how many tokens at most, and whether the text is shown."""

    on: bool
    budget: int | None = None
    shown: bool = True


@attrs.frozen
class ThinkingShape(Shape):
    """enabled with a budget, disabled, adaptive, and any other word as adaptive."""

    @override
    def structure(self, value: object) -> Thinking:
        found = mapping(value)
        kind = found.get("type")
        if not isinstance(kind, str):
            raise Misfit("must be a string", "type")
        budget = found.get("budget_tokens")
        if kind == "enabled" and budget is None:
            raise Misfit("is required", "budget_tokens")
        if kind == "enabled" and integer(budget) < LEAST_BUDGET:
            raise Misfit(f"must be at least {LEAST_BUDGET}", "budget_tokens")
        limit = integer(budget) if kind == "enabled" else None
        return Thinking(kind != "disabled", limit, found.get("display") != "omitted")

    @override
    def schema(self) -> Schema:
        kind: Schema = {"type": "string"}
        return {"type": "object", "required": ["type"], "properties": {"type": kind}}


FORMAT = FormatShape("output_config.format", nested=False)


@attrs.frozen
class OutputConfig:
    """How much to think, and what the answer has to be."""

    effort: str | None = None
    form: AnswerForm | None = None


@attrs.frozen
class OutputShape(Shape):
    """An effort and a format; other members have no effect."""

    @override
    def structure(self, value: object) -> OutputConfig:
        given = mapping(value)
        effort, form = given.get("effort"), given.get("format")
        if effort is not None and not isinstance(effort, str):
            raise Misfit("must be a string", "effort")
        try:
            return OutputConfig(effort, None if form is None else FORMAT.structure(form))
        except Misfit as misfit:
            raise misfit.under("format") from None

    @override
    def schema(self) -> Schema:
        properties: Schema = {"effort": {"type": "string"}, "format": FORMAT.schema()}
        return {"type": "object", "properties": properties}
