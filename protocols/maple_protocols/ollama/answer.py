"""POST /api/chat and /api/generate, outwards: lines of JSON, and the whole answer."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from maple_plugins.events import ContentDelta, ReasoningDelta

from maple_protocols.adapter import Done, Frame, Identity, JsonObject, NumberedCall, TurnEvent
from maple_protocols.ask import Ask
from maple_protocols.errors import ErrorBody
from maple_protocols.timings import Progress

NANOSECONDS = 1_000_000
"""In a millisecond."""


class Lines:
    """What lines of both routes are made of. ``chat``: the text stands in a message."""

    def __init__(self, ask: Ask, identity: Identity, *, chat: bool) -> None:
        self._chat = chat
        created = datetime.datetime.fromtimestamp(identity.created, datetime.UTC)
        self._heading = {
            "model": ask.echo["model"],
            "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def line(self, text: str = "", **members: Any) -> JsonObject:
        """One line: a piece of text, and what else the message, or the line, holds."""
        if self._chat:
            message = {"role": "assistant", "content": text, **members}
            return {**self._heading, "message": message, "done": False}
        return {**self._heading, "response": text, **members, "done": False}

    @staticmethod
    def ending(done: Done) -> JsonObject:
        """What the last line adds, in nanoseconds and tokens."""
        times = done.timings
        spent = (times.queue_ms, times.prompt_ms, times.predicted_ms) if times else (0.0, 0.0, 0.0)
        queue, prompt, predicted = (round(each * NANOSECONDS) for each in spent)
        return {
            "done": True,
            "done_reason": "length" if done.finish == "length" else "stop",
            "total_duration": queue + prompt + predicted,
            "load_duration": 0,
            "prompt_eval_count": done.usage.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": done.usage.completion_tokens,
            "eval_duration": predicted,
        }


def _call(call: NumberedCall) -> JsonObject:
    function = {"index": call.index, "name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": call.id, "function": function}


class OllamaEncoder:
    """A line an event."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def opening(self) -> Sequence[Frame]:
        """Nothing."""
        return ()

    def ping(self, progress: Progress) -> Sequence[Frame]:
        """A line of no text."""
        return (Frame(data=self._lines.line()),)

    def event(self, event: TurnEvent) -> Sequence[Frame]:
        """Text, thinking or a call; for Done the last line."""
        match event:
            case ReasoningDelta(text):
                found = self._lines.line(thinking=text)
            case ContentDelta(text):
                found = self._lines.line(text)
            case NumberedCall():
                found = self._lines.line(tool_calls=[_call(event)])
            case _:
                found = {**self._lines.line(), **self._lines.ending(event)}
        return (Frame(data=found),)

    def failure(self, error: ErrorBody) -> Sequence[Frame]:
        """The last line."""
        return (Frame(data={"error": error.message}),)

    def closing(self) -> Sequence[Frame]:
        """Nothing."""
        return ()


class OllamaFold:
    """All pieces in one object."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[JsonObject] = []
        self._answer: JsonObject = {}

    def event(self, event: TurnEvent) -> None:
        """Take the next event of the turn."""
        match event:
            case ReasoningDelta(text):
                self._thoughts.append(text)
            case ContentDelta(text):
                self._texts.append(text)
            case NumberedCall():
                self._calls.append(_call(event))
            case _:
                members: dict[str, Any] = {"thinking": "".join(self._thoughts), "tool_calls": self._calls}
                shown = {name: value for name, value in members.items() if value}
                self._answer = {
                    **self._lines.line("".join(self._texts), **shown),
                    **self._lines.ending(event),
                }

    def body(self) -> JsonObject:
        """The answer."""
        return self._answer
