"""The loop of a conversation: read a line, do a command, answer a call or ask, show the answer."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

from maple.chat.answer import Answer
from maple.chat.screen import Screen, harmless
from maple.client import Call, Message, Remote
from maple.errors import CommandFailed

__all__ = ["Conversation"]

HELP = """\
/new        begin anew        /think      show the last reasoning
/save FILE  keep it as JSON   /skip       give a tool call no result
/help       this list
Ctrl-C stops an answer, Ctrl-D leaves. A line that is asked for as a tool's result is sent as it is typed."""

NO_RESULT = "no result was given"


class Conversation:
    """Messages so far, the last reasoning, and the calls that wait for results. Lives on one thread.

    `patient`: a failure is told and the conversation goes on; otherwise it is raised.
    """

    def __init__(self, remote: Remote, screen: Screen, *, patient: bool) -> None:
        self._remote, self._screen, self._patient = remote, screen, patient
        self._messages: list[Message] = []
        self._reasoning = ""
        self._calls: Sequence[Call] = ()
        self._results: list[Message] = []
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/new": self._new,
            "/think": self._think,
            "/save": self._save,
            "/skip": self._skip,
            "/help": self._help,
        }

    def run(self) -> None:
        """Until the input ends. Ctrl-C at the prompt drops the line that was being typed."""
        while True:
            try:
                line = input(self._prompt()).strip()
            except EOFError:
                self._screen.say("")
                return
            except KeyboardInterrupt:
                self._screen.say("  (Ctrl-D leaves)")
                continue
            if line:
                self._take(line)

    def _prompt(self) -> str:
        """Asks for a line, or for the result of the first call that has none."""
        if not self._calls:
            return "> "
        name = self._calls[len(self._results)].name
        return f"result of {' '.join(harmless(name).split())[:64]}> "

    def _take(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._command(*line.partition(" ")[::2])
            elif self._calls:
                self._result(line)
            else:
                self._ask([{"role": "user", "content": line}])
        except CommandFailed as error:
            if not self._patient:
                raise
            self._screen.say(f"maple: {harmless(str(error))}")

    def _command(self, name: str, argument: str) -> None:
        if name not in self._commands:
            raise CommandFailed(f"{name[:64]} is not a command, /help lists them")
        self._commands[name](argument.strip())

    def _new(self, _: str) -> None:
        self._messages, self._reasoning, self._calls, self._results = [], "", (), []
        self._screen.say("a new conversation", dim=True)

    def _think(self, _: str) -> None:
        self._screen.say(harmless(self._reasoning) or "no reasoning yet", dim=True)

    def _help(self, _: str) -> None:
        self._screen.say(HELP)

    def _save(self, name: str) -> None:
        if not name:
            raise CommandFailed("/save needs a file name")
        try:
            with pathlib.Path(name).expanduser().open("x", encoding="utf-8") as file:
                json.dump({"messages": self._messages}, file, ensure_ascii=False, indent=1)
        except OSError as error:
            raise CommandFailed(f"cannot save to {name}: {error.strerror}") from error
        self._screen.say(f"saved {len(self._messages)} messages to {name}", dim=True)

    def _skip(self, _: str) -> None:
        """The calls stay in the history with a word in place of results; the model is not asked."""
        if not self._calls:
            raise CommandFailed("no tool call waits for a result")
        left = self._calls[len(self._results) :]
        self._messages += [*self._results, *(_tool(call, NO_RESULT) for call in left)]
        self._calls, self._results = (), []

    def _result(self, text: str) -> None:
        """Keep it; with the last one, ask the model to go on. Where that fails, the last is asked for again."""
        results = [*self._results, _tool(self._calls[len(self._results)], text)]
        if len(results) == len(self._calls):
            self._ask(results)
        else:
            self._results = results

    def _ask(self, added: Sequence[Message]) -> None:
        """Ask; what a stopped answer had so far is kept, and what was added is forgotten where it failed."""
        asked = [*self._messages, *added]
        answer, stopped = Answer(), False
        with contextlib.closing(self._remote.ask(asked)) as deltas:
            try:
                for delta in deltas:
                    answer.add(delta)
                    self._screen.show(delta, answer)
            except KeyboardInterrupt:
                stopped = True
        self._screen.end(answer, stopped=stopped)
        self._messages = [*asked, answer.message(stopped=stopped)]
        self._reasoning = answer.reasoning
        self._calls, self._results = () if stopped else tuple(answer.calls), []


def _tool(call: Call, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "content": content}
