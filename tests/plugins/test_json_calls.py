"""Calls read from complete JSON objects."""

from __future__ import annotations

import pytest
from maple_plugins.events import ToolCall
from maple_plugins.json_calls import call_key, is_json, read_call, read_strayed_call


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('{"name": "f", "arguments": {"x": 1}}', "f", '{"x": 1}'),
        ('{ "arguments" : { "x":1 } , "name" : "f" }', "f", '{ "x":1 }'),
        ('{"name": "f"}', "f", "{}"),
        ('{"name": "f", "arguments": null}', "f", "{}"),
        ('{"name": "f", "arguments": " {\\"x\\": 1}\\n"}', "f", '{"x": 1}'),
        ('{"name": "f", "arguments": "{\\"x\\": \\"\\\\n\\"}"}', "f", '{"x": "\\n"}'),
        ('{"name": "Z\\u00fc", "extra": [1]}', "Zü", "{}"),
        ('{"name": " "}', " ", "{}"),
        ('{"name": "old", "name": "new"}', "new", "{}"),
        ('{"name": "f", "arguments": {"n": ' + "9" * 5000 + "}}", "f", '{"n": ' + "9" * 5000 + "}"),
        ('{"name": "f", "arguments": {"s": "\\ud800"}}', "f", '{"s": "\\ud800"}'),
    ],
)
def test_a_good_call_is_read(text: str, name: str, arguments: str) -> None:
    """The name is decoded; the arguments are the model's own text of the object, trimmed."""
    assert read_call(text) == ToolCall(name, arguments)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"name": ""}',
        '{"name": 1}',
        '{"name": null, "arguments": {}}',
        '{"name": "\\ud800"}',
        '{"name": "f", "arguments": 1}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": true}',
        '{"name": "f", "arguments": ""}',
        '{"name": "f", "arguments": "go"}',
        '{"name": "f", "arguments": "[]"}',
        '{"name": "f", "arguments": "{} {}"}',
        '{"name": "f", "arguments": "{\\"x\\": NaN}"}',
        '{"name": "f", "arguments": "{\\"x\\": \\"\\ud800\\"}"}',
        '{"function": {"name": "f"}}',
    ],
)
def test_anything_else_is_no_call(text: str) -> None:
    """No usable name, or arguments that are no object, mean no call; lone surrogates cannot be sent."""
    assert read_call(text) is None


def test_other_member_names_may_hold_the_arguments() -> None:
    """The first of the given names that is there counts, and may be required."""
    keys = ("parameters", "arguments")
    assert read_call('{"name": "f", "arguments": {"a": 1}}', keys) == ToolCall("f", '{"a": 1}')
    assert read_call('{"name": "f", "arguments": 1, "parameters": {}}', keys) == ToolCall("f", "{}")
    assert read_call('{"name": "f"}', keys, required=True) is None


@pytest.mark.parametrize(
    ("members", "arguments"),
    [
        ('"parameters": {"x": 1}', '{"x": 1}'),
        ('"args": { "x":1 }', '{ "x":1 }'),
        ('"input": "{\\"x\\": 1}"', '{"x": 1}'),
        ('"arguments": {}, "parameters": {"x": 1}', '{"x": 1}'),
        ('"parameters": {"x": 1}, "arguments": "{ }"', '{"x": 1}'),
        ('"arguments": null, "args": {"x": 1}, "y": 2', '{"x": 1}'),
        ('"arguments": " ", "parameters": null, "input": {"x": 1}', '{"x": 1}'),
        ('"arguments": ""', "{}"),
        ('"id": "c1", "type": "function", "index": 0', "{}"),
        ('"arguments": {}, "parameters": {}', "{}"),
        ('"arguments": {}, "strict": null', "{}"),
        ('"arguments": {"x": 1}, "parameters": {"x": 2}, "y": 3', '{"x": 1}'),
        ('"x": 1', None),
        ('"arguments": {}, "x": false', None),
        ('"": 1', None),
        ('"arguments": "", "x": ""', None),
        ('"parameters": [1]', None),
        ('"parameters": "x"', None),
        ('"arguments": [], "parameters": {"x": 1}', None),
    ],
)
def test_strayed_arguments_are_found_or_no_call_is_made(members: str, arguments: str | None) -> None:
    """A tool is never run with {} where the model gave it something under another name."""
    wanted = None if arguments is None else ToolCall("f", arguments)
    assert read_strayed_call(f'{{"name": "f", {members}}}') == wanted
    assert read_strayed_call('{"name": "f"}') == ToolCall("f", "{}")
    assert read_strayed_call(f'{{"name": "", {members}}}') is None


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ('{"a":1,"b":[true]}', '{ "b": [ true ], "a": 1 }', True),
        ('{"a": "\\u00fc"}', '{"a": "ü"}', True),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": 1}', '{"a": ["1", 0]}', False),
        ('{"a": 9007199254740993}', '{"a": 9007199254740992}', False),
    ],
)
def test_calls_are_compared_by_value(first: str, second: str, same: bool) -> None:
    """Spacing, order and escapes make no difference; types and digits do."""
    assert (call_key(ToolCall("f", first)) == call_key(ToolCall("f", second))) is same
    assert call_key(ToolCall("f", first)) != call_key(ToolCall("g", first))


@pytest.mark.parametrize(
    ("text", "bracket", "whole"),
    [
        ("{}", "{", True),
        ('[{"a": 1}]', "[", True),
        ("{}", "[", False),
        ("", "{", False),
        ("{} ", "{", False),
        ("{", "{", False),
        ("{x}", "{", False),
    ],
)
def test_is_json_wants_the_whole_text(text: str, bracket: str, whole: bool) -> None:
    """One value of the kind and nothing else, not even white space."""
    assert is_json(text, bracket) is whole
