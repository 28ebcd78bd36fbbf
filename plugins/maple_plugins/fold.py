"""Events folded into a message: what a whole answer holds, by the same rules for every format."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from maple_plugins.events import ContentDelta, ParserEvent, ReasoningDelta, ToolCall


@attrs.frozen(kw_only=True)
class Message:
    """A folded answer.

    ``reasoning`` is None where there was none. ``content`` is None only when the whole answer was tool calls,
    and ``""`` when there is none for another reason.
    """

    reasoning: str | None
    content: str | None
    calls: tuple[ToolCall, ...] = ()


def fold(events: Iterable[ParserEvent]) -> Message:
    """Fold a turn's events, in order."""
    events = tuple(events)
    reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    content = "".join(event.text for event in events if isinstance(event, ContentDelta))
    calls = tuple(event for event in events if isinstance(event, ToolCall))
    return Message(
        reasoning=reasoning or None,
        content=None if calls and not content else content,
        calls=calls,
    )
