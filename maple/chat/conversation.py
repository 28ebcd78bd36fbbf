"""The loop of a conversation: read a line, do a command or ask, show the answer."""

from __future__ import annotations

import contextlib
import json
import pathlib

from maple.chat.answer import Answer
from maple.chat.screen import Screen, harmless
from maple.chat.stream import Message, Remote
from maple.commands.parsing import CommandFailed

__all__ = ["Conversation"]

HELP = """\
/new        begin anew        /think      show the last reasoning
/save FILE  keep it as JSON   /help       this list
Ctrl-C stops an answer, Ctrl-D leaves."""


class Conversation:
    """Messages so far, and the last answer. Lives on one thread."""

    def __init__(self, remote: Remote, screen: Screen) -> None:
        self._remote, self._screen = remote, screen
        self._messages: list[Message] = []
        self._reasoning = ""

    def run(self) -> None:
        """Until the input ends. Ctrl-C at the prompt drops the line that was being typed."""
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                self._screen.say("")
                return
            except KeyboardInterrupt:
                self._screen.say("  (Ctrl-D leaves)")
                continue
            if line:
                self._take(line)

    def _take(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._command(*line.partition(" ")[::2])
            else:
                self._ask(line)
        except CommandFailed as error:
            self._screen.say(f"maple: {harmless(str(error))}")

    def _command(self, name: str, argument: str) -> None:
        if name == "/new":
            self._messages, self._reasoning = [], ""
            self._screen.say("a new conversation", dim=True)
        elif name == "/think":
            self._screen.say(harmless(self._reasoning) or "no reasoning yet", dim=True)
        elif name == "/save":
            self._save(argument.strip())
        elif name == "/help":
            self._screen.say(HELP)
        else:
            raise CommandFailed(f"{name[:64]} is not a command, /help lists them")

    def _save(self, name: str) -> None:
        if not name:
            raise CommandFailed("/save needs a file name")
        try:
            with pathlib.Path(name).expanduser().open("x", encoding="utf-8") as file:
                json.dump({"messages": self._messages}, file, ensure_ascii=False, indent=1)
        except OSError as error:
            raise CommandFailed(f"cannot save to {name}: {error.strerror}") from error
        self._screen.say(f"saved {len(self._messages)} messages to {name}", dim=True)

    def _ask(self, question: str) -> None:
        """Ask; what a stopped answer had so far is kept, and a question that failed is forgotten."""
        asked = [*self._messages, {"role": "user", "content": question}]
        answer, stopped = Answer(), False
        with contextlib.closing(self._remote.ask(asked)) as deltas:
            try:
                for delta in deltas:
                    answer.add(delta)
                    self._screen.show(delta, answer)
            except KeyboardInterrupt:
                stopped = True
        self._screen.end(answer, stopped=stopped)
        self._messages = [*asked, {"role": "assistant", "content": answer.content}]
        self._reasoning = answer.reasoning
