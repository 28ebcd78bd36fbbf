"""Messages in the chat shape: validation, and their neutral form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
from typing_extensions import override

from maple_protocols.ask import CalledTool, Message
from maple_protocols.json import holds_object
from maple_protocols.openai.parts import (
    AssistantContent,
    Content,
    Omitted,
    Said,
    TextParts,
    json_text,
)
from maple_protocols.reading import is_extended, unserved
from maple_protocols.rules import Doc, Schema, Shape, free_form, text
from maple_protocols.schema import schema_of
from maple_protocols.strict import read

_THINK = re.compile(r"\s*<think>(.*?)</think>\n*(.*)", re.DOTALL)


@attrs.frozen
class ArgumentsShape(Shape):
    """JSON text of an object, which stays the text it is; an object; or blank text for no arguments.

    At the extended level any other text is rendered as a JSON string: a model wrote it, and a client that
    cannot change its history would be stuck with it.
    """

    @override
    def structure(self, value: object) -> str | Mapping[str, object]:
        if isinstance(value, dict):
            return free_form(value)
        if isinstance(value, str):
            if value.strip() in ("", "null"):
                return "{}"
            if holds_object(value):
                return text(value)
        if not is_extended():
            raise unserved("must be a JSON object or the text of one")
        return json_text(value if isinstance(value, str) else json_text(value))

    @override
    def schema(self) -> Schema:
        return {"anyOf": [{"type": "string"}, {"type": "object"}]}


@attrs.frozen
class ThoughtShape(Shape):
    """Reasoning that comes back: a string; at the extended level in parts, too."""

    place: str = "messages[]"

    @override
    def structure(self, value: object) -> str:
        if isinstance(value, str) or not is_extended():
            return text(value)
        return TextParts(place=self.place).structure(value)

    @override
    def schema(self) -> Schema:
        return {"type": "string"}


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
    content: AssistantContent = Said()
    reasoning_content: Annotated[str | None, ThoughtShape(), Doc("Goes back into the prompt.")] = None
    reasoning: Annotated[str | None, ThoughtShape(), Doc("Another name of reasoning_content.")] = None
    tool_calls: tuple[EarlierCall, ...] = ()

    def neutral(self) -> Message:
        """The neutral form; reasoning is what its field holds, or its parts, else a think block that opens the
        content.
        """
        content = self.content.text
        reasoning = self.reasoning_content or self.reasoning or self.content.reasoning
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


@attrs.frozen
class AnyMessage(Shape):
    """A message; at the extended level also in the shapes that older clients keep."""

    @override
    def structure(self, value: object) -> ChatMessage:
        found: ChatMessage = read(ChatMessage, renewed(value) if is_extended() else value)
        return found

    @override
    def schema(self) -> Schema:
        return schema_of(ChatMessage)


def renewed(value: object) -> object:
    """A message with its legacy parts in today's shape: functions are tools, and no field need be there."""
    if not isinstance(value, dict):
        return value
    message: dict[str, Any] = {"content": None, **value}
    if message.get("role") == "function":
        message["role"] = "tool"
    if message.get("role") == "tool" and not isinstance(message.get("tool_call_id"), str):
        message["tool_call_id"] = ""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = list(map(_renewed_call, calls))
    if not calls and isinstance(message.get("function_call"), dict):
        message["tool_calls"] = [{"function": message["function_call"]}]
    return message


def _renewed_call(call: object) -> object:
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict):
        return call
    return {"function": {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}}


def unreadable_user(messages: Sequence[Message]) -> int | None:
    """The index of the newest user message where the model can read nothing of it, else None."""
    found = next((index for index in reversed(range(len(messages))) if messages[index].role == "user"), None)
    return found if found is not None and isinstance(messages[found].content, Omitted) else None


UNREADABLE = "must hold some text; the model reads text only"
"""What the newest user message is refused with where it holds nothing else."""
