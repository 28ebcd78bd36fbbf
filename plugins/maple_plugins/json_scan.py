"""Strict JSON objects and arrays, found in text that arrives in pieces.

The scan takes each character once, keeps its own stack and stops at the first character that no JSON text can
have there, so that hostile text costs linear time and cannot exhaust Python's stack. The grammar is RFC
8259's: no NaN, no raw control characters in strings, no trailing commas. By hand: incremental readers of JSON
stop at no first wrong character, or hold the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import attrs

MAX_DEPTH = 256
"""Objects and arrays nested deeper than this are not read as JSON."""

WHITE_SPACE = " \t\n\r"
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

_SPACES = re.compile(f"[{WHITE_SPACE}]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER_RUN = re.compile(r"[-+.eE0-9]*")
_WORDS = {"t": "rue", "f": "alse", "n": "ull"}
_CLOSERS = {"{": "}", "[": "]"}
_VALUE_STARTS = '{["-0123456789tfn'
_FIRST = {"{": '"}', "[": _VALUE_STARTS + "]"}
_HEX = frozenset("0123456789abcdefABCDEF")

ScanState = Literal["open", "complete", "broken"]


def skip_spaces(text: str, at: int) -> int:
    """The first position from ``at`` on that holds no JSON white space."""
    return run_end(_SPACES, text, at)


def run_end(run: re.Pattern[str], text: str, at: int) -> int:
    """Where a match from ``at`` on ends; ``at`` itself where there is none."""
    match = run.match(text, at)
    return at if match is None else match.end()


def prose(stops: str) -> re.Pattern[str]:
    """Matches text in which no object or array can begin and none of the ``stops`` occurs.

    It looks one character beyond each bracket: a cheap first step over text that is mostly no JSON.
    """
    hopeless = "|".join(
        f"{re.escape(bracket)}(?=[^{re.escape(_FIRST[bracket] + WHITE_SPACE)}])" for bracket in _FIRST
    )
    plain = f"[^{re.escape(stops)}{{\\[]*+"
    return re.compile(f"{plain}(?:(?:{hopeless}){plain})*+")


@attrs.frozen
class _Container:
    bracket: str
    start: int


class JsonScan:
    """Reads one object or array, whose opening bracket is given, and stops behind it or where it breaks."""

    def __init__(self, bracket: str) -> None:
        self.state: ScanState = "open"
        self._parts = [bracket]
        self._length = 1
        self._shift = 0
        self._stack = [_Container(bracket, 0)]
        self._expected = _FIRST[bracket]
        self._step: Callable[[str, int], int] = self._structure
        self._due = ""
        self._digits: list[str] = []
        self._in_key = bracket == "{"
        self._string: int | None = None
        self._objects: list[tuple[int, int]] = []

    @property
    def text(self) -> str:
        """Everything taken so far; the whole value once complete."""
        return "".join(self._parts)

    @property
    def in_string(self) -> bool:
        """Whether the text so far ends within a string."""
        return self.state == "open" and self._step in (self._in_string, self._in_escape, self._in_hex)

    @property
    def objects(self) -> tuple[str, ...]:
        """The object itself, or the objects that are an array's elements, as far as they are complete."""
        text = self.text
        return tuple(text[start:end] for start, end in self._objects)

    @property
    def doubtful(self) -> str:
        """Once broken: the end of ``text`` that would be a string, were this JSON.

        A string is one only if the grammar goes on behind it, so this text is to be read again as what it is.
        """
        return "" if self._string is None else self.text[self._string :]

    def feed(self, text: str, at: int) -> int:
        """Read ``text`` from ``at`` and return where reading stopped.

        That is the end while open, else just behind the value or at the character that breaks it.
        """
        begin = at
        self._shift = self._length - begin
        while at < len(text) and self.state == "open":
            at = self._step(text, at)
        self._parts.append(text[begin:at])
        self._length += at - begin
        return at

    def end(self) -> None:
        """The text is over: an open value is broken, and only a string without its end is doubtful."""
        if self._step == self._structure:
            self._string = None
        self.state = "broken"

    def _break(self, at: int) -> int:
        self.state = "broken"
        return at

    def _structure(self, text: str, at: int) -> int:
        at = skip_spaces(text, at)
        if at == len(text):
            return at
        char = text[at]
        if char not in self._expected:
            return self._break(at)
        self._string = None
        if char in "{[":
            return self._open(char, at)
        if char in "}]":
            return self._close(at)
        self._token_starts(char, at)
        return at + 1

    def _token_starts(self, char: str, at: int) -> None:
        if char == '"':
            self._string = at + self._shift
            self._step = self._in_string
        elif char == ":":
            self._expected = _VALUE_STARTS
        elif char == ",":
            self._in_key = self._stack[-1].bracket == "{"
            self._expected = '"' if self._in_key else _VALUE_STARTS
        elif char in _WORDS:
            self._due = _WORDS[char]
            self._step = self._in_word
        else:
            self._digits = [char]
            self._step = self._in_number

    def _open(self, bracket: str, at: int) -> int:
        if len(self._stack) == MAX_DEPTH:
            return self._break(at)
        self._stack.append(_Container(bracket, at + self._shift))
        self._in_key = bracket == "{"
        self._expected = _FIRST[bracket]
        return at + 1

    def _close(self, at: int) -> int:
        closed = self._stack.pop()
        in_array = len(self._stack) == 1 and self._stack[0].bracket == "["
        if closed.bracket == "{" and (in_array or not self._stack):
            self._objects.append((closed.start, at + 1 + self._shift))
        if self._stack:
            self._value_over()
        else:
            self.state = "complete"
        return at + 1

    def _value_over(self) -> None:
        self._in_key = False
        self._expected = "," + _CLOSERS[self._stack[-1].bracket]
        self._step = self._structure

    def _in_string(self, text: str, at: int) -> int:
        at = run_end(_PLAIN, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._step = self._in_escape
        elif text[at] != '"':
            return self._break(at)
        elif self._in_key:
            self._in_key = False
            self._expected = ":"
            self._step = self._structure
        else:
            self._value_over()
        return at + 1

    def _in_escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._due = "0000"
            self._step = self._in_hex
        elif text[at] in '"\\/bfnrt':
            self._step = self._in_string
        else:
            return self._break(at)
        return at + 1

    def _in_hex(self, text: str, at: int) -> int:
        if text[at] not in _HEX:
            return self._break(at)
        self._due = self._due[1:]
        if not self._due:
            self._step = self._in_string
        return at + 1

    def _in_word(self, text: str, at: int) -> int:
        if text[at] != self._due[0]:
            return self._break(at)
        self._due = self._due[1:]
        if not self._due:
            self._value_over()
        return at + 1

    def _in_number(self, text: str, at: int) -> int:
        end = run_end(_NUMBER_RUN, text, at)
        self._digits.append(text[at:end])
        if end == len(text):
            return end
        if NUMBER.fullmatch("".join(self._digits)) is None:
            return self._break(end)
        self._value_over()
        return end
