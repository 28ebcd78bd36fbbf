"""The conversation that input items of /v1/responses make.

It is flat there: what one assistant turn said comes as reasoning, a message and calls in a row. They are
gathered into one message, as the chat route would have been sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from maple_protocols.ask import CalledTool, Message
from maple_protocols.openai.responses_items import (
    AgentItem,
    AssistantItem,
    Call,
    Item,
    Output,
    ReasoningItem,
    ReferenceItem,
    SystemItem,
    ToolItem,
    UserItem,
)


@attrs.define
class _AssistantTurn:
    """What one assistant turn has said so far."""

    reasoning: str = ""
    message: AssistantItem | None = None
    calls: list[CalledTool] = attrs.Factory(list)

    def takes(self, item: AssistantItem | Call | ReasoningItem) -> bool:
        """Whether ``item`` goes on with this turn: reasoning comes first, and there is one message."""
        if isinstance(item, ReasoningItem):
            return self.message is None and not self.calls
        return isinstance(item, Call) or self.message is None

    def neutral(self) -> Message:
        """One message; the message's own reasoning goes before that of items."""
        message = self.message or AssistantItem(role="assistant")
        own = message.reasoning_content or message.reasoning or self.reasoning
        spoken = attrs.evolve(message, reasoning_content=own).neutral()
        return attrs.evolve(spoken, tool_calls=(*spoken.tool_calls, *self.calls))


Naming = Callable[[str, str | None], str]
"""A tool's own name and namespace → the name that the model knows."""


def _own_name(name: str, _: str | None) -> str:
    return name


def conversation(items: Iterable[Item], naming: Naming = _own_name) -> tuple[Message, ...]:
    """The messages that a list of items makes; references must have been resolved."""
    said: list[Message | _AssistantTurn] = []
    for item in items:
        if isinstance(item, AssistantItem | Call | ReasoningItem):
            turn = said[-1] if said else None
            if not isinstance(turn, _AssistantTurn) or not turn.takes(item):
                turn = _AssistantTurn()
                said.append(turn)
            _add(turn, item, naming)
        elif not isinstance(item, ReferenceItem):
            said.append(_neutral(item))
    return tuple(entry.neutral() if isinstance(entry, _AssistantTurn) else entry for entry in said)


def _add(turn: _AssistantTurn, item: AssistantItem | Call | ReasoningItem, naming: Naming) -> None:
    match item:
        case ReasoningItem():
            turn.reasoning = "\n".join(filter(None, (turn.reasoning, item.content or item.summary)))
        case AssistantItem():
            turn.message = item
        case _:
            name = naming(item.name, item.namespace)
            turn.calls.append(CalledTool(name=name, arguments=item.arguments))


def _neutral(item: SystemItem | UserItem | ToolItem | Output | AgentItem) -> Message:
    if isinstance(item, Output):
        return Message(role="tool", content=item.output)
    return Message(role="user", content=item.content) if isinstance(item, AgentItem) else item.neutral()
