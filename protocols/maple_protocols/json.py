"""Request bodies: bytes → a JSON object, in linear time; what JSON readers disagree on is refused.

By hand: readers bound neither depth nor digits before they build, and keep the last of two equal names.
"""

from __future__ import annotations

import array
import itertools
import json
import math
import re
from typing import NoReturn

import attrs

from maple_protocols.errors import ErrorBody, RequestError

MAX_DEPTH = 64
MAX_DIGITS = 4000

# The closing quote is optional so that an unterminated string ends the scan instead of starting one at each
# later quote, which would be quadratic. Possessive repeats cannot backtrack.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


@attrs.define(eq=False)
class InvalidJson(RequestError):
    """The body is not one JSON object that every reader understands alike. ``reason`` has no client text."""

    reason: str

    @property
    def body(self) -> ErrorBody:
        """Blames the body as a whole."""
        return ErrorBody(message=self.reason, type="invalid_request_error", code="invalid_json")


def parse_body(data: bytes) -> dict[str, object]:
    """The object that ``data`` spells. Time and memory are linear in its length. Raises InvalidJson."""
    text = _text(data)
    if nesting(data) > MAX_DEPTH:
        raise InvalidJson(f"the body is nested deeper than {MAX_DEPTH} levels")
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidJson(f"the body is not valid JSON ({where})") from error
    if not isinstance(value, dict):
        raise InvalidJson("the body must be a JSON object")
    return value


def nesting(data: bytes) -> int:
    """How deep the brackets of ``data`` nest, those in strings not counted; defined for any bytes."""
    brackets = _STRING.sub(b"", data).translate(_STEPS, delete=_NOT_BRACKETS)
    return max(itertools.accumulate(array.array("b", brackets), initial=0))


def holds_object(text: str) -> bool:
    """Whether ``text`` is JSON of an object, read leniently: what a model once wrote must be taken back."""
    try:
        return isinstance(_LENIENT.decode(text), dict)
    except (ValueError, RecursionError):
        return False


def _text(data: bytes) -> str:
    if not data.strip():
        raise InvalidJson("the body is empty")
    if data.startswith(b"\xef\xbb\xbf"):
        raise InvalidJson("the body must be UTF-8 without a byte order mark")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJson("the body is not UTF-8") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidJson("the body has the same key twice in one object")
    return found


def _integer(literal: str) -> int:
    _check_digits(literal)
    return int(literal)


def _real(literal: str) -> float:
    _check_digits(literal)
    number = float(literal)
    if math.isinf(number):
        raise InvalidJson("the body holds a number that overflows")
    return number


def _check_digits(literal: str) -> None:
    if len(literal) > MAX_DIGITS and sum(map(str.isdigit, literal)) > MAX_DIGITS:
        raise InvalidJson(f"the body holds a number of more than {MAX_DIGITS} digits")


def _refuse_constant(literal: str) -> NoReturn:
    raise InvalidJson(f"the body holds {literal}, which is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_real, parse_constant=_refuse_constant
)
_LENIENT = json.JSONDecoder(parse_int=str, parse_float=str)
