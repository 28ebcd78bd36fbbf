"""Recorded model outputs: what a scripted engine plays, read from JSON lines and checked line by line."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator
from typing import Annotated, Literal

import attrs
from maple_protocols.errors import RequestError
from maple_protocols.json import parse_body
from maple_protocols.rules import Range
from maple_protocols.strict import structure

from maple.engine.api import Job, Piece
from maple.errors import MapleError

FinishWord = Literal["stop", "length", "error"]
MatchedMessage = Literal["user", "tool", "any"]

_LONGEST_DELAY_MS = 3_600_000


@attrs.define(eq=False)
class ScriptError(MapleError):
    """The script cannot be played. ``reason`` names the line and what is wrong with it."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"script {self.file}: {self.reason}"


@attrs.frozen(kw_only=True)
class Recording:
    """One line of a script: an output, and what asks for it.

    ``match`` is a text (None: any) in the message that ``on`` names: the last user message, the last message of
    all if that is a tool's result, or the last message whatever its role. ``turn`` is how many tool results the
    conversation holds (None: any number).
    """

    match: str | None = None
    on: MatchedMessage = "user"
    turn: Annotated[int | None, Range(least=0)] = None
    pieces: tuple[str, ...]
    finish: FinishWord = "stop"
    delay_ms: Annotated[float, Range(least=0, most=_LONGEST_DELAY_MS)] = 0.0

    @functools.cached_property
    def stream(self) -> tuple[Piece, ...]:
        """The pieces, each with its place."""
        return tuple(_placed(self.pieces))

    def answers(self, job: Job) -> bool:
        """Whether this is an answer to the job's conversation."""
        if self.turn not in (None, job.end.tool_results) or (self.on == "tool" and not job.end.from_tool):
            return False
        return self.match is None or self.match in (job.subject if self.on == "user" else job.end.text)


def _placed(texts: tuple[str, ...]) -> Iterator[Piece]:
    offset = 0
    for text in texts:
        yield Piece(text, (offset,))
        offset += len(text)


def read_script(path: pathlib.Path) -> tuple[Recording, ...]:
    """Read and check a script; blank lines are passed over. Raises ScriptError naming the first bad line."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError:
        raise ScriptError(path.name, "is not UTF-8") from None
    except OSError as error:
        raise ScriptError(path.name, f"cannot be read ({error.strerror})") from None
    filled = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    recordings = tuple(_read_line(path.name, number, line) for number, line in filled)
    if not recordings:
        raise ScriptError(path.name, "holds no recording")
    return recordings


def _read_line(file: str, number: int, line: str) -> Recording:
    try:
        return structure(Recording, parse_body(line.encode()), refuse_unknown=True)
    except RequestError as error:
        complaint = error.body.message.removeprefix("the body ")
        raise ScriptError(file, f"line {number}: {complaint}") from None
