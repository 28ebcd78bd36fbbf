"""The JSON reader: what it takes, and the words with which it refuses."""

from __future__ import annotations

import json
import time

import pytest
from maple_protocols.json import MAX_DEPTH, MAX_DIGITS, InvalidJson, holds_object, nesting, parse_body
from maple_testing.guard import LINEAR_GUARD

MIB = 1 << 20


def refusal(data: bytes) -> str:
    with pytest.raises(InvalidJson) as caught:
        parse_body(data)
    wire = caught.value.body.as_wire()["error"]
    assert isinstance(wire, dict)
    assert {**wire, "message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_json",
    }
    assert caught.value.status == 400
    return str(wire["message"])


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b' \r\n\t{"a": [1, -0.5e3, true, null, "\\u00e9\xc3\xa9"]}\n',
        b'{"a": {"a": {"a": 1}}}',
        b'{"": ""}',
    ],
)
def test_reads_what_the_standard_reader_reads(data: bytes) -> None:
    """A plain object comes back as Python's own reader gives it."""
    assert parse_body(data) == json.loads(data)


@pytest.mark.parametrize("data", [b"", b" ", b"\n\t\r "])
def test_an_empty_body_is_refused(data: bytes) -> None:
    """Empty: the body holds nothing, or nothing but white space."""
    assert refusal(data) == "the body is empty"


@pytest.mark.parametrize(
    "data", [b"{}\xff", '{"a": "é"}'.encode("latin-1"), b'{"a": "\xed\xa0\x80"}', b"\xff\xfe{\0}\0"]
)
def test_a_body_that_is_not_utf8_is_refused(data: bytes) -> None:
    """Not UTF-8: stray bytes, Latin-1, an encoded surrogate, UTF-16 with its mark."""
    assert refusal(data) == "the body is not UTF-8"


def test_a_byte_order_mark_is_refused() -> None:
    """A BOM is not part of JSON text."""
    assert "byte order mark" in refusal(b"\xef\xbb\xbf{}")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_utf16_without_a_mark_is_refused(encoding: str) -> None:
    """UTF-16 and UTF-32 happen to be UTF-8 full of NULs, which is no JSON either."""
    assert "not valid JSON" in refusal('{"a": 1}'.encode(encoding))


@pytest.mark.parametrize(
    "data",
    [
        b"{nope",
        b'{"a": 1,}',
        b"{'a': 1}",
        b'{"a": 1} {}',
        b'{"a": 01}',
        b'{"a": .5}',
        b'{"a": "\n"}',
        b'{"a": "\\x"}',
        b'{"a": "',
        b'{"a": "\\',
        b"{",
        b"}}}}{",
        b"{/* hi */}",
    ],
)
def test_text_that_is_not_json_is_refused_with_its_place(data: bytes) -> None:
    """Not JSON: the message names the line and column, and repeats nothing of the body."""
    assert refusal(data).startswith("the body is not valid JSON (line ")


@pytest.mark.parametrize("data", [b"[]", b'"{}"', b"1", b"null", b"true"])
def test_json_that_is_not_an_object_is_refused(data: bytes) -> None:
    """Not an object: a body is always an object."""
    assert refusal(data) == "the body must be a JSON object"


def nest(depth: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


def test_nesting_is_limited() -> None:
    """64 levels pass, the 65th is refused, brackets in strings do not count."""
    assert parse_body(nest(MAX_DEPTH))
    assert "deeper than 64" in refusal(nest(MAX_DEPTH + 1))
    assert "deeper than 64" in refusal(b'{"a": %s}' % nest(MAX_DEPTH, "[", "]"))
    assert parse_body(b'{"a": "%s", "b": "\\"[["}' % (b"[" * 100))


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":[' * 50_000])
def test_bottomless_nesting_is_a_refusal_not_a_recursion_error(data: bytes) -> None:
    """Brackets that never close are counted before anything recurses."""
    assert "deeper than 64" in refusal(data)


def test_nesting_counts_brackets_outside_strings() -> None:
    """Escapes and an unterminated string end where JSON says they end."""
    assert nesting(b'{"a\\"[[": [1]}') == 2
    assert nesting(b'[["[[[[') == 2
    assert nesting(b"]]][") == 0
    assert nesting(b"") == 0


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(literal: bytes) -> None:
    """NaN or Infinity, at any depth."""
    assert literal.decode() in refusal(b'{"a": [' + literal + b"]}")


@pytest.mark.parametrize("literal", [b"1e400", b"-1e400", b"1.5E+999999"])
def test_numbers_that_overflow_are_refused(literal: bytes) -> None:
    """A number that overflows would come back as infinity."""
    assert "overflows" in refusal(b'{"a": ' + literal + b"}")


def test_numbers_are_limited_to_4000_digits() -> None:
    """4,000 digits pass, sign and exponent mark aside; more are refused, in integers and fractions."""
    assert parse_body(b'{"a": -%s}' % (b"1" * MAX_DIGITS))["a"] == -int("1" * MAX_DIGITS)
    assert parse_body(b'{"a": 0.%se1}' % (b"0" * (MAX_DIGITS - 2)))["a"] == 0.0
    assert "4000 digits" in refusal(b'{"a": %s}' % (b"1" * (MAX_DIGITS + 1)))
    assert "4000 digits" in refusal(b'{"a": 0.%s}' % (b"0" * MAX_DIGITS))


@pytest.mark.parametrize(
    "data", [b'{"a": 1, "a": 1}', b'{"x": [{"a": 1, "b": 2, "a": 3}]}', b'{"a": 1, "\\u0061": 2}']
)
def test_a_duplicate_key_is_refused_at_any_depth(data: bytes) -> None:
    """A duplicate key, however it is spelled: readers disagree on which value counts."""
    assert "same key twice" in refusal(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":"' + b'\\"' * (8 * MIB),
        b'"' * (16 * MIB),
        b"\\" * (16 * MIB),
        b"[" * (16 * MIB),
        b'{"a":' + b"1" * (16 * MIB) + b"}",
        b'{"a":[' + b"[]," * (5 * MIB),
    ],
    ids=["escapes", "quotes", "backslashes", "brackets", "digits", "lists"],
)
def test_16_mib_of_spite_take_linear_time(data: bytes) -> None:
    """The worst bodies of the permitted size are refused in seconds; a quadratic step would take hours."""
    began = time.process_time()
    refusal(data)
    assert time.process_time() - began < LINEAR_GUARD


@pytest.mark.parametrize(
    "text", ["{}", ' {"a": {"b": []}} ', '{"a": NaN, "a": 1e999}', '{"a": ' + "9" * 5000 + "}"]
)
def test_earlier_arguments_are_read_leniently(text: str) -> None:
    """What a model once wrote as arguments comes back, even where a body would be refused for it."""
    assert holds_object(text)


@pytest.mark.parametrize("text", ["", "[]", "{", "1", '{"a": 1} x', '{"a":' * 100_000])
def test_earlier_arguments_must_spell_an_object(text: str) -> None:
    """Anything but one object is none, however deep it goes wrong."""
    assert not holds_object(text)
