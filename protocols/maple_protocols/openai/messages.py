"""Messages in the chat shape: validation, and their neutral form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import attrs
from typing_extensions import override

from maple_protocols.ask import CalledTool, Message
from maple_protocols.json import holds_object
from maple_protocols.rules import Doc, Misfit, Schema, Shape, each, free_form, text

_THINK = re.compile(r"\s*<think>(.*?)</think>\n*(.*)", re.DOTALL)


@attrs.frozen
class TextParts(Shape):
    """A string, null (""), or a list of parts whose text is joined with nothing between."""

    types: tuple[str, ...] = ("text",)

    @override
    def structure(self, value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, list):
            return "".join(each(value, self._part))
        if not isinstance(value, str):
            raise Misfit("must be a string or a list of text parts")
        return text(value)

    def _part(self, part: object) -> str:
        if not isinstance(part, dict) or part.get("type") not in self.types:
            raise Misfit("must be a text part; the model reads text only")
        try:
            return text(part.get("text"))
        except Misfit as misfit:
            raise misfit.under("text") from None

    @override
    def schema(self) -> Schema:
        part: Schema = {
            "type": "object",
            "required": ["type", "text"],
            "properties": {"type": {"enum": list(self.types)}, "text": {"type": "string"}},
        }
        return {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": part}]}


@attrs.frozen
class ArgumentsShape(Shape):
    """JSON text of an object, which stays the text it is; an object; or "" for no arguments."""

    @override
    def structure(self, value: object) -> str | Mapping[str, object]:
        if value == "":
            return "{}"
        if isinstance(value, str) and holds_object(value):
            return text(value)
        if not isinstance(value, dict):
            raise Misfit("must be a JSON object or the text of one")
        return free_form(value)

    @override
    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string"}, {"type": "object"}]}


Content = Annotated[str, TextParts()]
Arguments = Annotated[
    str | Mapping[str, object], ArgumentsShape(), Doc("Arguments of the call; none if missing.")
]


@attrs.frozen(kw_only=True)
class CalledFunction:
    """The function of an earlier call."""

    name: str
    arguments: Arguments = "{}"


@attrs.frozen(kw_only=True)
class EarlierCall:
    """A call that the assistant made; its id needs no match."""

    type: Literal["function"] = "function"
    function: CalledFunction


@attrs.frozen(kw_only=True)
class SystemMessage:
    """Instructions, anywhere in the conversation."""

    role: Literal["system", "developer"]
    content: Content

    def neutral(self) -> Message:
        """The neutral form: developer is system."""
        return Message(role="system", content=self.content)


@attrs.frozen(kw_only=True)
class UserMessage:
    """What the user said."""

    role: Literal["user"]
    content: Content

    def neutral(self) -> Message:
        """The neutral form."""
        return Message(role="user", content=self.content)


@attrs.frozen(kw_only=True)
class AssistantMessage:
    """An earlier answer, with its reasoning and calls if the client kept them."""

    role: Literal["assistant"]
    content: Content = ""
    reasoning_content: Annotated[str | None, Doc("Goes back into the prompt.")] = None
    reasoning: Annotated[str | None, Doc("Another name of reasoning_content.")] = None
    tool_calls: tuple[EarlierCall, ...] = ()

    def neutral(self) -> Message:
        """The neutral form; reasoning is what its field holds, else a think block that opens the content."""
        content, reasoning = self.content, self.reasoning_content or self.reasoning
        if not reasoning and (block := _THINK.fullmatch(content)):
            reasoning, content = block[1].strip("\n"), block[2]
        calls = tuple(
            CalledTool(name=call.function.name, arguments=call.function.arguments) for call in self.tool_calls
        )
        return Message(role="assistant", content=content, reasoning=reasoning or None, tool_calls=calls)


@attrs.frozen(kw_only=True)
class ToolMessage:
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Annotated[str, Doc("Required; it need not match a call.")]

    def neutral(self) -> Message:
        """The neutral form."""
        return Message(role="tool", content=self.content)


ChatMessage = SystemMessage | UserMessage | AssistantMessage | ToolMessage
