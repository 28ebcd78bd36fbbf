"""Input items of /v1/responses: validation, and the conversation they make.

A conversation here is flat: what one assistant turn said comes as reasoning, a message and calls in a row.
They are gathered into one message, as the chat route would have been sent it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import attrs
from typing_extensions import override

from maple_protocols.ask import CalledTool, Message
from maple_protocols.openai.messages import (
    Arguments,
    AssistantMessage,
    SystemMessage,
    TextParts,
    ToolMessage,
    UserMessage,
)
from maple_protocols.rules import Doc, Misfit, Schema, Shape, each, mapping, one_of, text
from maple_protocols.schema import schema_of
from maple_protocols.strict import read

ItemContent = Annotated[str, TextParts(("text", "input_text", "output_text"))]


@attrs.frozen(kw_only=True)
class SystemItem(SystemMessage):
    """Instructions, anywhere in the conversation."""

    content: ItemContent


@attrs.frozen(kw_only=True)
class UserItem(UserMessage):
    """What the user said."""

    content: ItemContent


@attrs.frozen(kw_only=True)
class AssistantItem(AssistantMessage):
    """An earlier answer."""

    content: ItemContent = ""


@attrs.frozen(kw_only=True)
class ToolItem(ToolMessage):
    """What a tool answered, in the chat shape."""

    content: ItemContent


@attrs.frozen(kw_only=True)
class CallItem:
    """A call that the assistant made."""

    type: Literal["function_call"]
    call_id: Annotated[object, Doc("Shown again in a stored input; it need not match.")] = None
    name: str
    arguments: Arguments = "{}"


@attrs.frozen(kw_only=True)
class CallOutputItem:
    """What a tool answered."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Doc("Required; it need not match a call.")]
    output: ItemContent


@attrs.frozen(kw_only=True)
class ReasoningItem:
    """The reasoning before an answer: its text, or its summary where that is all the client has."""

    type: Literal["reasoning"]
    content: Annotated[str, TextParts(("reasoning_text",))] = ""
    summary: Annotated[str, TextParts(("summary_text",))] = ""


MessageItem = SystemItem | UserItem | AssistantItem | ToolItem
OtherItem = CallItem | CallOutputItem | ReasoningItem
Item = MessageItem | OtherItem
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")


@attrs.frozen
class Items(Shape):
    """A string, one message, or a list of items of which those without a type are messages."""

    @override
    def structure(self, value: object) -> tuple[Item, ...]:
        if isinstance(value, list) and value:
            return each(value, _item)
        if isinstance(value, dict):
            return (_item(value),)
        if not isinstance(value, str) or not value.strip():
            raise Misfit("must be text that is not blank, a message, or a list of items")
        return (UserItem(role="user", content=text(value)),)

    @override
    def schema(self) -> Schema:
        item = schema_of(Item)
        items: Schema = {"type": "array", "items": item, "minItems": 1}
        return {"anyOf": [{"type": "string", "minLength": 1}, item, items]}


def _item(value: object) -> Item:
    kind = mapping(value).get("type")
    if kind is None or kind == "message":
        message: MessageItem = read(MessageItem, value)
        return message
    if kind not in ITEM_TYPES:
        raise Misfit(one_of(ITEM_TYPES), "type")
    other: OtherItem = read(OtherItem, value)
    return other


@attrs.define
class _AssistantTurn:
    """What one assistant turn has said so far."""

    reasoning: str = ""
    message: AssistantItem | None = None
    calls: list[CalledTool] = attrs.Factory(list)

    def takes(self, item: AssistantItem | CallItem | ReasoningItem) -> bool:
        """Whether ``item`` goes on with this turn: reasoning comes first, and there is one message."""
        if isinstance(item, ReasoningItem):
            return self.message is None and not self.calls
        return isinstance(item, CallItem) or self.message is None

    def add(self, item: AssistantItem | CallItem | ReasoningItem) -> None:
        """Go on with ``item``."""
        match item:
            case ReasoningItem():
                self.reasoning = "\n".join(filter(None, (self.reasoning, item.content or item.summary)))
            case CallItem():
                self.calls.append(CalledTool(name=item.name, arguments=item.arguments))
            case _:
                self.message = item

    def neutral(self) -> Message:
        """One message; the message's own reasoning goes before that of items."""
        message = self.message or AssistantItem(role="assistant")
        own = message.reasoning_content or message.reasoning or self.reasoning
        spoken = attrs.evolve(message, reasoning_content=own).neutral()
        return attrs.evolve(spoken, tool_calls=(*spoken.tool_calls, *self.calls))


def conversation(items: Iterable[Item]) -> tuple[Message, ...]:
    """The messages that a list of items makes."""
    said: list[SystemItem | UserItem | ToolItem | CallOutputItem | _AssistantTurn] = []
    for item in items:
        if isinstance(item, SystemItem | UserItem | ToolItem | CallOutputItem):
            said.append(item)
            continue
        turn = said[-1] if said else None
        if not isinstance(turn, _AssistantTurn) or not turn.takes(item):
            turn = _AssistantTurn()
            said.append(turn)
        turn.add(item)
    return tuple(map(_neutral, said))


def _neutral(entry: SystemItem | UserItem | ToolItem | CallOutputItem | _AssistantTurn) -> Message:
    if isinstance(entry, CallOutputItem):
        return Message(role="tool", content=entry.output)
    return entry.neutral()
