"""Whether to think: the words that clients have for it, of which the first in their order counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

from maple_protocols.reading import drop, is_extended
from maple_protocols.rules import Doc, Range

OFF = frozenset({"none", "minimal"})
"""Efforts that turn thinking off; any other leaves it as it is."""

Verdict = list[bool | None]
"""Empty where nothing is said; None leaves it to the server."""

ThinkingWord = Annotated[object, Doc("Another way to say enable_thinking; anything else has no effect.")]
Effort = Annotated[
    object, Doc("none and minimal turn thinking off; at the extended level low and medium bound it.")
]
Budget = Annotated[
    int | None, Range(least=0), Doc("Most tokens of reasoning, which is then closed; 0 turns thinking off.")
]


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

    @property
    def thinking_token_budget(self) -> int | None: ...

    @property
    def thinking_budget_tokens(self) -> int | None: ...


def wanted(settings: Mapping[str, object], request: _Wished) -> bool | None:
    """The request's word on thinking: the template's own switch first. What says nothing is noted."""
    verdicts = {
        "enable_thinking": _switch(request.enable_thinking),
        "thinking": _kind(request.thinking),
        "think": _switch(request.think) or effort(request.think),
        "thinking_token_budget": _budget(request.thinking_token_budget),
        "thinking_budget_tokens": _budget(request.thinking_budget_tokens),
        "reasoning": _object(request.reasoning),
        "reasoning_effort": effort(request.reasoning_effort),
    }
    for name, verdict in verdicts.items():
        if getattr(request, name) is not None and verdict in _says_nothing():
            drop(name)
    spoken = [
        *_switch(settings.get("enable_thinking")),
        *(word for verdict in verdicts.values() for word in verdict),
    ]
    return spoken[0] if spoken else None


def _says_nothing() -> Sequence[Verdict]:
    """At the extended level an effort that leaves thinking on may bound it."""
    return ([],) if is_extended() else ([], [None])


def budget(request: _Wished) -> int | None:
    """The most tokens of reasoning."""
    inner = request.reasoning.get("max_tokens") if isinstance(request.reasoning, dict) else None
    return first_budget(request.thinking_token_budget, request.thinking_budget_tokens, inner) or None


def first_budget(*given: object) -> int | None:
    """The first that is a number; 0 turns thinking off."""
    return next((one for one in given if type(one) is int), None)


def effort_word(*given: object) -> str | None:
    """The first effort that is a word, alone or as an object's effort; at the reference level none counts."""
    if not is_extended():
        return None
    words = (one.get("effort") if isinstance(one, dict) else one for one in given)
    return next((one for one in words if isinstance(one, str)), None)


def _budget(tokens: int | None) -> Verdict:
    return [] if tokens is None else [tokens > 0]


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
