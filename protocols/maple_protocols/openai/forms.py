"""What an answer is to be: response_format, text.format and vLLM's structured_outputs, which are one thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import attrs
from typing_extensions import override

from maple_protocols.ask import AnswerForm
from maple_protocols.reading import is_extended, unserved
from maple_protocols.rules import Doc, Inert, Misfit, Schema, Shape, anything, each, mapping, one_of, text

PLAIN = ("text", "json_object")
KINDS = (*PLAIN, "json_schema")
MAX_CHOICES = 1024


def _schema(value: object) -> object:
    if not isinstance(value, dict | bool):
        raise Misfit("must be a JSON Schema: an object, or true or false")
    return anything(value)


def _choices(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES:
        raise Misfit(f"must be a list of 1 to {MAX_CHOICES} strings")
    return each(value, text)


@attrs.frozen
class FormatShape(Shape):
    """text (None), json_object or json_schema. At the reference level only the first two are taken.

    ``param`` is the field. ``nested``: a schema stands under json_schema, as in chat, not beside the type.
    """

    param: str
    nested: bool

    @override
    def structure(self, value: object) -> AnswerForm | None:
        given = mapping(value)
        kind = given.get("type", None if self.nested else "text")
        if not isinstance(kind, str) or kind not in KINDS:
            raise Misfit(one_of(KINDS if is_extended() else PLAIN), *(() if self.nested else ("type",)))
        if kind == "json_schema":
            return self._by_schema(given)
        return None if kind == "text" else AnswerForm(kind="object", param=self.param, spelt=given)

    def _by_schema(self, given: Mapping[str, object]) -> AnswerForm:
        if not is_extended():
            raise unserved(one_of(PLAIN), *(() if self.nested else ("type",)))
        path = ("json_schema", "schema") if self.nested else ("schema",)
        try:
            holder = mapping(given.get("json_schema")) if self.nested else given
        except Misfit as misfit:
            raise misfit.under("json_schema") from None
        schema = holder.get("schema", {"type": "object"})
        if not isinstance(schema, dict | bool):
            raise Misfit("must be a JSON Schema: an object, or true or false", *path)
        return AnswerForm(
            kind="schema", param=".".join((self.param, *path)), value=anything(schema), spelt=given
        )

    @override
    def schema(self) -> Schema:
        form: Schema = {"type": "object"}
        if self.nested:
            more = {
                "json_schema": {"type": "object", "properties": {"name": {"type": "string"}, "schema": form}}
            }
            return {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"enum": list(KINDS)}, **more},
            }
        return {"type": "object", "properties": {"type": {"enum": list(KINDS)}, "schema": form}}


@attrs.frozen
class OutputsShape(Shape):
    """One of json, regex, choice and grammar, at the extended level; else anything, without effect."""

    @override
    def structure(self, value: object) -> AnswerForm | None:
        if not is_extended():
            anything(value)
            return None
        given = {name: wanted for name, wanted in mapping(value).items() if wanted is not None}
        if len(given.keys() & _OUTPUTS.keys()) != 1 or len(given) != 1:
            raise Misfit(f"must have one of {', '.join(_OUTPUTS)}")
        [(name, wanted)] = given.items()
        kind, read = _OUTPUTS[name]
        try:
            return AnswerForm(kind=kind, param=f"structured_outputs.{name}", value=read(wanted))
        except Misfit as misfit:
            raise misfit.under(name) from None

    @override
    def schema(self) -> Schema:
        if not is_extended():
            return {}
        members: Schema = {
            "json": {"type": ["object", "boolean"]},
            "regex": {"type": "string"},
            "choice": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_CHOICES},
            "grammar": {"type": "string"},
        }
        return {"type": "object", "properties": members, "minProperties": 1, "additionalProperties": False}


_OUTPUTS: Mapping[str, tuple[Any, Callable[[object], object]]] = {
    "json": ("schema", _schema),
    "regex": ("regex", text),
    "choice": ("choice", _choices),
    "grammar": ("grammar", text),
}

ResponseFormat = Annotated[
    AnswerForm | None,
    FormatShape("response_format", nested=True),
    Inert({"type": "text"}, extended=True),
    Doc("text, any JSON object, or one of a schema, at the extended level; else accepted, without effect."),
]
TextFormat = Annotated[
    AnswerForm | None,
    FormatShape("text.format", nested=False),
    Doc("text, any JSON object, or one of a schema, at the extended level; else without effect."),
]
StructuredOutputs = Annotated[
    AnswerForm | None,
    OutputsShape(),
    Inert(extended=True),
    Doc("json (a schema), regex, choice or grammar (Lark), at the extended level."),
]
