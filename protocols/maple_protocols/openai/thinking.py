"""Whether to think: the words that clients have for it, of which the first in their order counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Protocol

from maple_protocols.reading import drop
from maple_protocols.rules import Doc

OFF = frozenset({"none", "minimal"})
"""Efforts that turn thinking off; any other leaves it as it is."""

Verdict = list[bool | None]
"""Empty where nothing is said; None leaves it to the server."""

ThinkingWord = Annotated[object, Doc("Another way to say enable_thinking; anything else has no effect.")]
Effort = Annotated[object, Doc("none and minimal turn thinking off; any other word has no effect.")]


class _Wished(Protocol):
    @property
    def enable_thinking(self) -> object: ...

    @property
    def thinking(self) -> object: ...

    @property
    def think(self) -> object: ...

    @property
    def reasoning(self) -> object: ...

    @property
    def reasoning_effort(self) -> object: ...


def wanted(settings: Mapping[str, object], request: _Wished) -> bool | None:
    """The request's word on thinking: the template's own switch first. What says nothing is noted."""
    verdicts = {
        "enable_thinking": _switch(request.enable_thinking),
        "thinking": _kind(request.thinking),
        "think": _switch(request.think) or effort(request.think),
        "reasoning": _object(request.reasoning),
        "reasoning_effort": effort(request.reasoning_effort),
    }
    for name, verdict in verdicts.items():
        if getattr(request, name) is not None and verdict in ([], [None]):
            drop(name)
    spoken = [
        *_switch(settings.get("enable_thinking")),
        *(word for verdict in verdicts.values() for word in verdict),
    ]
    return spoken[0] if spoken else None


def effort(value: object) -> Verdict:
    """What a reasoning effort says."""
    return [False if value in OFF else None] if isinstance(value, str) else []


def _switch(value: object) -> Verdict:
    return [value] if isinstance(value, bool) else []


def _kind(value: object) -> Verdict:
    """{"type": "enabled" | "disabled"}, or the switch alone."""
    kinds = {"enabled": True, "disabled": False}
    kind = value.get("type") if isinstance(value, dict) else None
    return [kinds[kind]] if isinstance(kind, str) and kind in kinds else _switch(value)


def _object(value: object) -> Verdict:
    """{"effort": …} or {"enabled": …}."""
    return effort(value.get("effort")) or _switch(value.get("enabled")) if isinstance(value, dict) else []
