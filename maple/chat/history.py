"""What was said: messages as the chat route takes them, and the calls that wait for their results."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

import attrs

from maple.client import Message
from maple.errors import CommandFailed

NO_RESULT = "no result was given"


@attrs.define
class History:
    """The conversation so far. ``results`` are those of the last message's calls that have been typed."""

    system: str = ""
    messages: list[Message] = attrs.field(factory=list)
    results: list[Message] = attrs.field(factory=list)

    @property
    def calls(self) -> Sequence[Message]:
        """The calls of the last message, which wait for results."""
        return self.messages[-1].get("tool_calls", ()) if self.messages else ()

    @property
    def waiting(self) -> str | None:
        """The name of the first call that has no result."""
        left = self.calls[len(self.results) :]
        return left[0]["function"]["name"] if left else None

    def with_result(self, text: str) -> list[Message]:
        """The results so far and one more."""
        return [*self.results, _result(self.calls[len(self.results)], text)]

    def asked(self, added: Sequence[Message]) -> list[Message]:
        """What is sent when ``added`` is said now."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages, *added]

    def keep(self, added: Sequence[Message], answer: Message) -> None:
        """What was said, and what was answered."""
        self.messages += [*added, answer]
        self.results = []

    def skip(self) -> None:
        """The calls that wait get a word in place of results. Raises CommandFailed where none wait."""
        if not self.calls:
            raise CommandFailed("no tool call waits for a result")
        left = self.calls[len(self.results) :]
        self.messages += [*self.results, *(_result(call, NO_RESULT) for call in left)]
        self.results = []

    def without_answer(self) -> History:
        """The history before its last answer. Raises CommandFailed where there is none."""
        ends = [at for at, message in enumerate(self.messages) if message["role"] == "assistant"]
        if not ends:
            raise CommandFailed("there is no answer to give again")
        return History(system=self.system, messages=self.messages[: ends[-1]])

    def save(self, name: str) -> None:
        """Write a new file. Raises CommandFailed."""
        try:
            with _path(name).open("x", encoding="utf-8") as file:
                json.dump({"messages": self.asked(())}, file, ensure_ascii=False, indent=1)
        except OSError as error:
            raise CommandFailed(f"cannot save to {name}: {error.strerror}") from error

    @classmethod
    def load(cls, name: str) -> History:
        """Read what ``save`` wrote. Raises CommandFailed."""
        try:
            kept = json.loads(_path(name).read_text(encoding="utf-8"))
        except OSError as error:
            raise CommandFailed(f"cannot load {name}: {error.strerror}") from error
        except ValueError as error:
            raise CommandFailed(f"{name} is not JSON: {error}") from error
        messages = kept.get("messages") if isinstance(kept, dict) else None
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise CommandFailed(f"{name} holds no conversation: /save writes one")
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
        return cls(system=str(system), messages=messages[1:] if system else messages)


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    calls = value.get("tool_calls", [])
    return "content" in value and isinstance(calls, list) and all(map(_is_call, calls))


def _is_call(value: object) -> bool:
    if not isinstance(value, dict) or "id" not in value:
        return False
    function = value.get("function")
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _result(call: Message, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


def _path(name: str) -> pathlib.Path:
    if not name:
        raise CommandFailed("the name of a file is needed")
    try:
        return pathlib.Path(name).expanduser()
    except RuntimeError as error:
        raise CommandFailed(f"no home folder is known for {name}") from error
