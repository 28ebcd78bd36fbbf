"""An answer as it grows."""

from __future__ import annotations

import time
from typing import Any

import attrs

from maple.client import Call, Delta, Message


@attrs.define
class Answer:
    """An answer as it grows, with the times that the summary needs (seconds of a monotonic clock)."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = attrs.field(factory=list)
    tokens: int | None = None
    started: float = attrs.field(factory=time.monotonic)
    first: float | None = None
    answered: float | None = None
    ended: float | None = None

    def add(self, delta: Delta) -> None:
        """Append one event."""
        now = self.ended = time.monotonic()
        if self.first is None and (delta.reasoning or delta.content or delta.calls):
            self.first = now
        if self.answered is None and (delta.content or delta.calls):
            self.answered = now
        self.reasoning += delta.reasoning
        self.content += delta.content
        self.calls += delta.calls
        self.tokens = delta.tokens if delta.tokens is not None else self.tokens

    def message(self, *, stopped: bool) -> Message:
        """As the history keeps it. A stopped answer wants no calls; reasoning goes along with calls alone."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if stopped or not self.calls:
            return message
        calls = [call.wire() for call in self.calls]
        return message | {"reasoning_content": self.reasoning, "tool_calls": calls}

    def thought(self) -> str:
        """How long the reasoning was."""
        seconds = (self.answered or self.ended or self.started) - self.started
        words = len(self.reasoning.split())
        return f"thought for {seconds:.1f} s · {words} word{'s' * (words != 1)}"

    def speed(self) -> str:
        """Tokens, and tokens a second since the first; empty where the answer was stopped."""
        if self.tokens is None or self.first is None or self.ended is None:
            return ""
        rate = self.tokens / max(self.ended - self.first, 1e-3)
        return f"{self.tokens} tokens · {rate:.1f} tokens/s"
