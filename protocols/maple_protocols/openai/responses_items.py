"""Input items of /v1/responses: what each kind holds, and which of them have nothing to say here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import attrs
from typing_extensions import override

from maple_protocols.openai.messages import (
    Arguments,
    AssistantMessage,
    SystemMessage,
    ToolMessage,
    UserMessage,
    renewed,
)
from maple_protocols.openai.parts import AssistantParts, Said, TextParts
from maple_protocols.reading import drop, is_extended, unserved
from maple_protocols.rules import Doc, Misfit, Schema, Shape, each, free_form, mapping, one_of, text
from maple_protocols.schema import schema_of
from maple_protocols.strict import read

PLACE = "input[]"
TEXTS = TextParts(("text", "input_text", "output_text"), PLACE)
ItemContent = Annotated[str, TEXTS]


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

    content: Annotated[Said, AssistantParts(TEXTS)] = Said()


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
    namespace: str | None = None


@attrs.frozen(kw_only=True)
class CallOutputItem:
    """What a tool answered."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Doc("Required; it need not match a call.")]
    output: ItemContent


@attrs.frozen(kw_only=True)
class CustomCallItem:
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    call_id: object = None
    name: str
    input: ItemContent = ""
    namespace: str | None = None

    @property
    def arguments(self) -> Mapping[str, object]:
        """As the function that the model was shown takes it."""
        return {"input": self.input}


@attrs.frozen(kw_only=True)
class CustomOutputItem:
    """What a custom tool answered."""

    type: Literal["custom_tool_call_output"]
    call_id: object = None
    output: ItemContent = ""


@attrs.frozen(kw_only=True)
class ShellCallItem:
    """A command that was to be run on the client's machine."""

    type: Literal["local_shell_call"]
    call_id: object = None
    action: Mapping[str, object] = attrs.field(factory=dict)
    name: ClassVar[str] = "local_shell"
    namespace: ClassVar[str | None] = None

    @property
    def arguments(self) -> Mapping[str, object]:
        """As the function that the model was shown takes it."""
        kept = ("command", "working_directory", "timeout_ms")
        return {key: self.action[key] for key in kept if self.action.get(key) is not None}


@attrs.frozen(kw_only=True)
class ShellOutputItem:
    """What became of a command."""

    type: Literal["local_shell_call_output"]
    call_id: object = None
    output: ItemContent = ""


@attrs.frozen(kw_only=True)
class ReasoningItem:
    """The reasoning before an answer: its text, or its summary where that is all the client has."""

    type: Literal["reasoning"]
    content: Annotated[str, TextParts(("reasoning_text",), PLACE)] = ""
    summary: Annotated[str, TextParts(("summary_text",), PLACE)] = ""


@attrs.frozen(kw_only=True)
class AgentItem:
    """What another agent said: it is read as a user's message."""

    type: Literal["agent_message"]
    content: ItemContent = ""


@attrs.frozen(kw_only=True)
class ReferenceItem:
    """An item that was kept with an earlier response."""

    type: Literal["item_reference"]
    id: str


MessageItem = SystemItem | UserItem | AssistantItem | ToolItem
Call = CallItem | CustomCallItem | ShellCallItem
Output = CallOutputItem | CustomOutputItem | ShellOutputItem
OtherItem = Call | Output | ReasoningItem | AgentItem | ReferenceItem
Item = MessageItem | OtherItem
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
_READ = frozenset(
    (
        *ITEM_TYPES,
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
    )
) | {"agent_message", "item_reference"}
_HOSTED = re.compile(r"\w+_call|\w+_output|mcp_\w+|\w*compaction\w*")
"""Items of tools that the vendor runs, and of its bookkeeping: a history may hold them, and they say nothing."""


@attrs.frozen
class Items(Shape):
    """A string, one message, or a list of items of which those without a type are messages."""

    @override
    def structure(self, value: object) -> tuple[Item, ...]:
        if isinstance(value, list) and value:
            return tuple(item for item in each(value, _item) if item is not None)
        if isinstance(value, dict):
            found = _item(value)
            return () if found is None else (found,)
        if not isinstance(value, str) or not value.strip():
            raise Misfit("must be text that is not blank, a message, or a list of items")
        return (UserItem(role="user", content=text(value)),)

    @override
    def schema(self) -> Schema:
        item = schema_of(Item)
        items: Schema = {"type": "array", "items": item, "minItems": 1}
        return {"anyOf": [{"type": "string", "minLength": 1}, item, items]}


def _item(value: object) -> Item | None:
    """One item; None for one that has nothing to say here."""
    raw = mapping(value)
    kind = raw.get("type")
    if kind is None and "role" not in raw and isinstance(raw.get("id"), str):
        return ReferenceItem(type="item_reference", id=text(raw["id"]))
    if kind is None or kind == "message":
        message: MessageItem = read(MessageItem, renewed(raw) if is_extended() else raw)
        return message
    if not isinstance(kind, str):
        raise Misfit(one_of(ITEM_TYPES), "type")
    if kind in _READ:
        other: OtherItem = read(OtherItem, _lenient(raw) if is_extended() else raw)
        return other
    if not _HOSTED.fullmatch(kind) and not is_extended():
        raise unserved(one_of(ITEM_TYPES), "type")
    drop(PLACE, kind)
    return None


def _lenient(raw: dict[str, Any]) -> dict[str, Any]:
    """A call or its result whose id or result is lost."""
    if raw["type"] == "function_call_output":
        named = raw.get("call_id") if isinstance(raw.get("call_id"), str) else ""
        return {"output": None, **raw, "call_id": named}
    if raw["type"] == "local_shell_call":
        action = raw.get("action")
        return {**raw, "action": free_form(action) if isinstance(action, dict) else {}}
    return raw
