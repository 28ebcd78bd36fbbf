"""What the terminal shows. Text of a model never reaches it unescaped: control characters could take it over."""

from __future__ import annotations

import contextlib
import sys
import unicodedata
from collections.abc import Iterator
from typing import TextIO

from maple.chat.answer import Answer
from maple.chat.markdown import GrowingMarkdown
from maple.client import Delta

_DIM, _PLAIN, _CLEAR_LINE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINER = "\u200d"


def harmless(text: str) -> str:
    r"""Spell control and invisible format characters (escape, bidirectional overrides, …) as ``\\xNN``.

    Newlines, tabs and the joiner of emoji stay.
    """
    return "".join(
        ascii(char)[1:-1]
        if unicodedata.category(char) in _HIDDEN and char not in ("\n", "\t", _JOINER)
        else char
        for char in text
    )


class Screen:
    """Writes an answer as it comes. Off a terminal it writes the bare answer: no colour, no figures, no escapes.

    ``alone``: there is no conversation whose commands show more.
    """

    def __init__(self, out: TextIO | None = None, *, alone: bool = False) -> None:
        self._out = out or sys.stdout
        self._hint = "" if alone else " (/think shows it)"
        self._live = self._out.isatty()
        self._markdown: GrowingMarkdown | None = None

    def say(self, text: str, *, dim: bool = False) -> None:
        """A line of our own."""
        self._write(f"{_DIM}{text}{_PLAIN}\n" if dim and self._live else f"{text}\n")

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Around an answer: whatever ends it, what was shown of it stays, and the terminal is as before."""
        try:
            yield
        finally:
            if self._markdown is not None:
                self._markdown.close()
                self._markdown = None

    def show(self, delta: Delta, answer: Answer) -> None:
        """Show what ``delta`` added to ``answer``: reasoning as one growing count, the answer as text."""
        if not self._live:
            self._write(delta.content)
            return
        shown = (delta.content, list(delta.calls))
        begins = any(shown) and shown == (answer.content, answer.calls)
        if delta.reasoning and not (answer.content or answer.calls):
            self._write(f"{_CLEAR_LINE}{_DIM}… {answer.thought()}{_PLAIN}")
        if begins and answer.reasoning:
            self._fold(answer)
        if delta.content:
            self._markdown = self._markdown or GrowingMarkdown(self._out)
            self._markdown.add(harmless(delta.content))

    def end(self, answer: Answer, *, stopped: bool) -> None:
        """Close an answer with its calls and figures."""
        if self._live and answer.reasoning and not (answer.content or answer.calls):
            self._fold(answer)
        for call in answer.calls:
            self.say(f"→ {harmless(str(call))}")
        if not self._live:
            self._write("" if not answer.content or answer.content.endswith("\n") else "\n")
        elif note := "stopped" if stopped else answer.speed():
            self.say(note, dim=True)

    def _fold(self, answer: Answer) -> None:
        self._write(_CLEAR_LINE)
        self.say(f"{answer.thought()}{self._hint}", dim=True)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
