"""What counts as right: one reply, offline or from a server, against what its exchange expects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import attrs

REASONING_LIMIT = 256


@attrs.frozen(kw_only=True)
class Answer:
    """A reply split as the server splits it. ``reasoning_tokens`` is None when the think block never closed."""

    content: str
    calls: tuple[tuple[str, str], ...] = ()
    reasoning_tokens: int | None = 0

    @property
    def closed(self) -> bool:
        """Whether the think block closed within the limit."""
        return self.reasoning_tokens is not None and self.reasoning_tokens <= REASONING_LIMIT


def is_right(answer: Answer, expect: dict[str, Any]) -> bool:
    """Whether every expectation holds; an unknown one is an error."""
    return all(_CHECKS[name](answer, wanted) for name, wanted in expect.items())


def split_text(text: str, *, thinking: bool, count_tokens: Any) -> Answer:
    """Splits raw model output: reasoning up to ``</think>``, then content and tool calls."""
    reasoning, closed, rest = text.partition("</think>") if thinking else ("", "closed", text)
    if not closed:
        return Answer(content="", reasoning_tokens=None)
    blocks = re.findall(r"<tool_call>\n(.*?)\n</tool_call>", rest, re.DOTALL)
    content = re.sub(r"<tool_call>.*?</tool_call>", "", rest, flags=re.DOTALL).strip("\n")
    return Answer(
        content=content,
        calls=tuple(_parsed(block) for block in blocks),
        reasoning_tokens=count_tokens(reasoning),
    )


def _parsed(block: str) -> tuple[str, str]:
    try:
        call = json.loads(block)
        return str(call["name"]), json.dumps(call["arguments"])
    except (ValueError, KeyError, TypeError):
        return "", block


def _number(answer: Answer, wanted: int) -> bool:
    found = re.findall(r"-?\d+", answer.content)
    return bool(found) and int(found[-1]) == wanted


def _contains(answer: Answer, wanted: list[str]) -> bool:
    return all(re.search(rf"(?<!\w){re.escape(text)}(?!\w)", answer.content) for text in wanted)


def _equals(answer: Answer, wanted: str) -> bool:
    return answer.content.strip() == wanted


def _calls(answer: Answer, wanted: list[dict[str, Any]]) -> bool:
    try:
        made = [{"name": name, "arguments": json.loads(arguments)} for name, arguments in answer.calls]
    except ValueError:
        return False
    return made == wanted


def _no_calls(answer: Answer, wanted: bool) -> bool:
    return not answer.calls


_CHECKS: dict[str, Callable[[Answer, Any], bool]] = {
    "number": _number,
    "contains": _contains,
    "equals": _equals,
    "calls": _calls,
    "no_calls": _no_calls,
}
