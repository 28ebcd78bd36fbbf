"""The incremental JSON scan, held against Python's own parser."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from maple_plugins.json_scan import MAX_DEPTH, JsonScan

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
CONTAINERS = st.lists(VALUES, max_size=4) | st.dictionaries(st.text(max_size=4), VALUES, max_size=4)


def _scan(text: str, step: int = 1) -> tuple[JsonScan, int]:
    """Feed a container's text in pieces; return the scan and how many characters it took."""
    scan = JsonScan(text[0])
    taken = 1
    for at in range(1, len(text), step):
        if scan.state == "open":
            taken += scan.feed(text[at : at + step], 0)
    return scan, taken


def _refuse(word: str) -> None:
    raise ValueError(word)


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_refuse, parse_int=str)
    except ValueError:
        return False
    return True


@given(CONTAINERS, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 9))
def test_json_is_read_to_its_end(value: object, indent: int | None, ascii_only: bool, step: int) -> None:
    """An object or array is complete just at its last character, however spaced, escaped and cut."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    scan, taken = _scan(text + "}]tail", step)
    assert (scan.state, taken, scan.text, scan.doubtful) == ("complete", len(text), text, "")


@given(st.text('{}[]",:01-+.eE\\/ntrufals\n b\t\x01', max_size=24), st.sampled_from("{["))
def test_a_scan_agrees_with_a_strict_parser(text: str, bracket: str) -> None:
    """Complete means valid JSON, and valid JSON means complete."""
    text = bracket + text
    scan, taken = _scan(text)
    complete = scan.state == "complete"
    assert complete == any(_is_json(text[:end]) for end in range(1, len(text) + 1))
    assert not complete or _is_json(text[:taken])
    assert scan.text == text[:taken]


@given(CONTAINERS, st.integers(0, 200), st.sampled_from('{}[]",:0x\\\n '), st.integers(1, 5))
def test_a_scan_breaks_where_no_json_can_go_on(value: object, at: int, wrong: str, step: int) -> None:
    """With one character put in anywhere the scan still agrees with a strict parser, in every cut."""
    text = json.dumps(value)
    text = text[: 1 + at % len(text)] + wrong + text[1 + at % len(text) :]
    scan, taken = _scan(text, step)
    by_character, taken_by_character = _scan(text)
    assert (scan.state, taken, scan.text) == (by_character.state, taken_by_character, by_character.text)
    assert (scan.objects, scan.doubtful) == (by_character.objects, by_character.doubtful)
    assert (scan.state == "complete") == any(_is_json(text[:end]) for end in range(1, len(text) + 1))


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("{1", "{"),
        ("{'a': 1}", "{"),
        ('{"a" 1}', '{"a" '),
        ('{"a": 1,}', '{"a": 1,'),
        ("[1,]", "[1,"),
        ("[1 2]", "[1 "),
        ("[01]", "[01"),
        ("[1.]", "[1."),
        ("[-]", "[-"),
        ("[NaN]", "["),
        ("[trux]", "[tru"),
        ("[Infinity]", "["),
        ('["a\nb"]', '["a'),
        ('["\\x"]', '["\\'),
        ('["\\u00g0"]', '["\\u00'),
        ("[1}", "[1"),
        ('{"a": 1]', '{"a": 1'),
    ],
)
def test_broken_json_ends_at_the_character_that_breaks_it(text: str, taken: str) -> None:
    """Everything before that character is taken, and nothing more."""
    scan, length = _scan(text)
    assert (scan.state, scan.text, length) == ("broken", taken, len(taken))


@pytest.mark.parametrize(
    ("text", "objects"),
    [
        ('{"a": {"b": 1}}', ('{"a": {"b": 1}}',)),
        ('{"a": {"b": 1}', ()),
        ('[{"a": 1}, 2, {"b": [{}]}]', ('{"a": 1}', '{"b": [{}]}')),
        ('[{"a": 1}, {"b"', ('{"a": 1}',)),
        ('[{"a": 1} oops', ('{"a": 1}',)),
        ('[[{"a": 1}]]', ()),
    ],
)
def test_objects_are_the_value_itself_or_the_elements_of_an_array(
    text: str, objects: tuple[str, ...]
) -> None:
    """An element counts as soon as it is complete, whatever becomes of the array."""
    assert _scan(text)[0].objects == objects


@pytest.mark.parametrize(
    ("text", "doubtful"),
    [
        ('{"a": "b c" d', '"b c" '),
        ('{"a": "b\n', '"b'),
        ('{"a": "b", c', ""),
        ('{"a" "b"', '"a" '),
        ('["\\', '"\\'),
        ('{"a": 1', ""),
        ('{"a": "b"', ""),
        ('{"a": "b c', '"b c'),
    ],
)
def test_a_string_is_doubtful_until_the_grammar_goes_on(text: str, doubtful: str) -> None:
    """Where JSON breaks behind a quoted text, or ends within one, that text may have been no string."""
    scan, _ = _scan(text)
    if scan.state == "open":
        scan.end()
    assert (scan.state, scan.doubtful) == ("broken", doubtful)


def test_depth_is_limited() -> None:
    """The limit itself is fine, one more is not read as JSON; Python's stack plays no part."""
    assert _scan("[" * MAX_DEPTH + "]" * MAX_DEPTH)[0].state == "complete"
    scan, taken = _scan("[" * (MAX_DEPTH + 1))
    assert (scan.state, taken) == ("broken", MAX_DEPTH)


def test_numbers_of_any_length_are_json() -> None:
    """Python's limit on the digits of an int is none of JSON's."""
    assert _scan("[" + "9" * 5000 + "]")[0].state == "complete"
