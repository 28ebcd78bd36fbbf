"""The loop of a conversation: read what is typed, do a command, answer a call or ask, show the answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence

from maple.chat.answer import Answer
from maple.chat.history import History
from maple.chat.screen import Screen, harmless
from maple.client import Message, Remote
from maple.errors import CommandFailed

HELP = """\
/new          begin anew              /think        show the last reasoning
/system TEXT  say how to answer       /set NAME X   a field of each request, such as temperature 0.2
/regenerate   answer again            /skip         give a tool call no result
/save FILE    keep it as JSON         /load FILE    go on with what was kept
/help         this list               /quit         leave, as Ctrl-D does
Lines between two of \"\"\" are sent as one. Ctrl-C stops an answer. A line that is asked for as a tool's result is
sent as it is typed."""

FENCE = '"""'
LEAVING = ("/quit", "/exit", "/bye")
_FIXED = frozenset({"messages", "stream", "stream_options"})
"""Fields that are the conversation's own."""


class Conversation:
    """A history and the fields of each request. Lives on one thread.

    ``patient``: a failure is told and the conversation goes on; otherwise it is raised.
    """

    def __init__(
        self, remote: Remote, screen: Screen, *, patient: bool, options: Mapping[str, object] | None = None
    ) -> None:
        self._remote, self._screen, self._patient = remote, screen, patient
        self._options = dict(options or {})
        self._history = History()
        self._reasoning = ""
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/new": self._new,
            "/think": self._think,
            "/system": self._system,
            "/set": self._set,
            "/regenerate": self._regenerate,
            "/skip": lambda _: self._history.skip(),
            "/save": self._save,
            "/load": self._load,
            "/help": lambda _: self._screen.say(HELP),
        }

    def run(self) -> None:
        """Until the input ends. Ctrl-C at the prompt drops the line that was being typed."""
        while True:
            try:
                line = self._read()
            except EOFError:
                self._screen.say("")
                return
            except KeyboardInterrupt:
                self._screen.say("  (Ctrl-D leaves)")
                continue
            if line in LEAVING:
                return
            if line:
                self._take(line)

    def ask(self, added: Sequence[Message]) -> None:
        """Ask; what a stopped answer had so far is kept, and what was added is forgotten where it failed."""
        answer, stopped = Answer(), False
        asked = self._history.asked(added)
        with self._screen.answering(), contextlib.closing(self._remote.ask(asked, self._options)) as deltas:
            try:
                for delta in deltas:
                    answer.add(delta)
                    self._screen.show(delta, answer)
            except KeyboardInterrupt:
                stopped = True
        self._screen.end(answer, stopped=stopped)
        self._history.keep(added, answer.message(stopped=stopped))
        self._reasoning = answer.reasoning

    def _read(self) -> str:
        """A line, or the lines between two fences. Raises EOFError, KeyboardInterrupt."""
        line = input(self._prompt()).strip()
        if not line.startswith(FENCE):
            return line
        lines = [line.removeprefix(FENCE)]
        while not lines[-1].rstrip().endswith(FENCE):
            lines.append(input("… "))
        return "\n".join(lines).rstrip().removesuffix(FENCE).strip("\n")

    def _prompt(self) -> str:
        """Asks for a line, or for the result of the first call that has none."""
        name = self._history.waiting
        return "> " if name is None else f"result of {' '.join(harmless(name).split())[:64]}> "

    def _take(self, line: str) -> None:
        try:
            if line.startswith("/"):
                self._command(*line.partition(" ")[::2])
            elif self._history.calls:
                self._result(line)
            else:
                self.ask([{"role": "user", "content": line}])
        except CommandFailed as error:
            if not self._patient:
                raise
            self._screen.say(f"maple: {harmless(str(error))}")

    def _command(self, name: str, argument: str) -> None:
        if name not in self._commands:
            raise CommandFailed(f"{name[:64]} is not a command, /help lists them")
        self._commands[name](argument.strip())

    def _result(self, text: str) -> None:
        """Keep it; with the last one, ask the model to go on. Where that fails, the last is asked for again."""
        results = self._history.with_result(text)
        if len(results) == len(self._history.calls):
            self.ask(results)
        else:
            self._history.results = results

    def _new(self, _: str) -> None:
        self._history, self._reasoning = History(system=self._history.system), ""
        self._screen.say("a new conversation", dim=True)

    def _think(self, _: str) -> None:
        self._screen.say(harmless(self._reasoning) or "no reasoning yet", dim=True)

    def _system(self, text: str) -> None:
        """Say how to answer from now on; without a text, tell what is said."""
        self._history.system = text or self._history.system
        self._screen.say(harmless(self._history.system) or "nothing is said yet: /system TEXT", dim=True)

    def _set(self, words: str) -> None:
        """A field of each request: JSON, or a word. Without a value it is left out; all that are set are told."""
        name, _, text = words.partition(" ")
        if name in _FIXED:
            raise CommandFailed(f"{name} is the conversation's own")
        if name:
            self._options.pop(name, None)
        if text.strip():
            self._options[name] = _value(text.strip())
        told = ", ".join(f"{each} {json.dumps(value)}" for each, value in self._options.items())
        self._screen.say(harmless(told) or "the server's defaults", dim=True)

    def _regenerate(self, _: str) -> None:
        before, self._history = self._history, self._history.without_answer()
        try:
            self.ask(())
        except CommandFailed:
            self._history = before
            raise

    def _save(self, name: str) -> None:
        self._history.save(name)
        self._screen.say(f"saved {len(self._history.messages)} messages to {name}", dim=True)

    def _load(self, name: str) -> None:
        self._history = History.load(name)
        self._screen.say(f"{len(self._history.messages)} messages from {name}", dim=True)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
