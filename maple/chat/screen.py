"""What the terminal shows. Text of a model never reaches it unescaped: control characters could take it over."""

from __future__ import annotations

import sys
import unicodedata
from typing import TextIO

from maple.chat.answer import Answer
from maple.client import Delta

__all__ = ["Screen", "harmless"]

_DIM, _PLAIN, _CLEAR_LINE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINER = "\u200d"


def harmless(text: str) -> str:
    r"""Spell control and invisible format characters (escape, bidirectional overrides, …) as `\\xNN`.

    Newlines, tabs and the joiner of emoji stay.
    """
    return "".join(
        ascii(char)[1:-1]
        if unicodedata.category(char) in _HIDDEN and char not in ("\n", "\t", _JOINER)
        else char
        for char in text
    )


class Screen:
    """Writes an answer as it comes. Off a terminal there is no colour and no line that changes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._live = self._out.isatty()

    def say(self, text: str, *, dim: bool = False) -> None:
        """A line of our own."""
        self._write(f"{_DIM}{text}{_PLAIN}\n" if dim and self._live else f"{text}\n")

    def show(self, delta: Delta, answer: Answer) -> None:
        """Show what `delta` added to `answer`: reasoning as one growing count, the answer as text."""
        shown = (delta.content, list(delta.calls))
        begins = any(shown) and shown == (answer.content, answer.calls)
        if delta.reasoning and self._live:
            self._write(f"{_CLEAR_LINE}{_DIM}… {answer.thought()}{_PLAIN}")
        if begins and answer.reasoning:
            self._fold(answer)
        self._write(harmless(delta.content))
        for call in delta.calls:
            self._write(f"\n→ {harmless(str(call))}")

    def end(self, answer: Answer, *, stopped: bool) -> None:
        """Close an answer with its figures."""
        if answer.reasoning and not (answer.content or answer.calls):
            self._fold(answer)
        note = "stopped" if stopped else answer.speed()
        self._write("\n")
        if note:
            self.say(note, dim=True)

    def _fold(self, answer: Answer) -> None:
        self._write(_CLEAR_LINE if self._live else "")
        self.say(f"{answer.thought()} (/think shows it)", dim=True)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
