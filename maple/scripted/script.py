"""Recorded model outputs: what a scripted engine plays, read from JSON lines and checked line by line."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any, Literal, get_args

import attrs
import cattrs

from maple.engine.api import Job, Piece
from maple.errors import MapleError

__all__ = ["FinishWord", "MatchedMessage", "Recording", "ScriptError", "read_script"]

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


def _well_formed(_: object, field: attrs.Attribute[Any], value: str | None) -> None:
    """JSON can spell half a surrogate pair, which is no character and could not be sent."""
    if value is not None and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{field.name}: holds half a surrogate pair") from None


def _usable_turn(_: object, field: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 0:
        raise ValueError(f"{field.name}: must not be negative")


def _usable_delay(_: object, field: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value <= _LONGEST_DELAY_MS:
        raise ValueError(f"{field.name}: must be between 0 and {_LONGEST_DELAY_MS}")


@attrs.frozen(kw_only=True)
class Recording:
    """One line of a script: an output, and what asks for it.

    ``match`` is a text (None: any) in the message that ``on`` names: the last user message, the last message of
    all if that is a tool's result, or the last message whatever its role. ``turn`` is how many tool results the
    conversation holds (None: any number).
    """

    match: str | None = attrs.field(default=None, validator=_well_formed)
    on: MatchedMessage = "user"
    turn: int | None = attrs.field(default=None, validator=_usable_turn)
    pieces: tuple[str, ...] = attrs.field(validator=attrs.validators.deep_iterable(_well_formed))
    finish: FinishWord = "stop"
    delay_ms: float = attrs.field(default=0.0, validator=_usable_delay)
    stream: tuple[Piece, ...] = attrs.field(init=False, repr=False, eq=False)

    @stream.default
    def _place_pieces(self) -> tuple[Piece, ...]:
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
        return _structure(json.loads(line, parse_constant=_refuse_constant))
    except json.JSONDecodeError as error:
        raise ScriptError(file, f"line {number}: not JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise ScriptError(file, f"line {number}: nested too deeply") from None
    except (cattrs.BaseValidationError, TypeError, ValueError) as error:
        raise ScriptError(file, f"line {number}: {_first_complaint(error)}") from None


def _structure(raw: object) -> Recording:
    if not isinstance(raw, dict):
        raise TypeError("must be an object")
    return _converter.structure(raw, Recording)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _first_complaint(error: Exception) -> str:
    complaint, _, path = cattrs.transform_error(error, format_exception=_describe)[0].partition(" @ ")
    field = path.removeprefix("$").removeprefix(".")
    return f"{field}: {complaint}" if field else complaint


def _describe(error: BaseException, wanted: type | None) -> str:
    if isinstance(error, KeyError):
        return "is missing"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"unknown key {min(error.extra_fields)!r}"
    return str(error)


def _text(value: object, _: type) -> str:
    if not isinstance(value, str):
        raise TypeError("must be a string")
    return value


def _number(value: object, _: type) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError("must be a number")
    return value


def _integer(value: object, _: type) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("must be an integer")
    return value


def _word(value: object, kind: Any) -> str:
    words = get_args(kind)
    if value not in words:
        raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}")
    return str(value)


def _texts(value: object, _: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("must be a list of strings")
    for index, text in enumerate(value):
        if not isinstance(text, str):
            raise TypeError(f"[{index}] must be a string")
    return tuple(value)


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(int, _integer)
    converter.register_structure_hook_func(lambda kind: kind in (FinishWord, MatchedMessage), _word)
    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _texts)
    return converter


_converter = _make_converter()
