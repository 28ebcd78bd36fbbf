"""Whatever a client sends, the answer is an Ask or a refusal that can go out."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maple_protocols.adapter import GenerationAdapter, Policy
from maple_protocols.errors import ErrorBody, RequestError
from maple_protocols.json import InvalidJson, parse_body
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.completions import CompletionsAdapter
from maple_protocols.openai.responses import ResponsesAdapter

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
PARTS = [{"type": "text", "text": "a"}]
MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": PARTS},
    {"role": "assistant", "content": "<think>r</think>a", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "t"},
]
COMMON: dict[str, Any] = {
    "stop": ["a"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
}
CHAT = {
    "messages": MESSAGES,
    "tools": [TOOL],
    "tool_choice": "auto",
    "chat_template_kwargs": {"x": 1},
    **COMMON,
}
ITEMS = [
    *MESSAGES,
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "o"},
]
RESPONSES = {
    "input": ITEMS,
    "tools": [{"type": "function", "name": "f"}],
    "text": {"format": {"type": "text"}},
}
SEEDS: list[tuple[GenerationAdapter, dict[str, Any]]] = [
    (ChatAdapter(), CHAT),
    (CompletionsAdapter(), {"prompt": [[1, 2]], **COMMON}),
    (ResponsesAdapter(), {**RESPONSES, **COMMON}),
]

texts = st.text(st.characters(exclude_categories=()), max_size=4) | st.sampled_from(
    ["", "none", "user", "function", "text", "function_call", "{", "{}", "\ud83d", "x" * 2000]
)
numbers = (
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([2**63, -(10**400)])
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def places(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of everything in ``value``."""
    steps: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        steps = list(value.items())
    elif isinstance(value, list):
        steps = list(enumerate(value))
    return [path, *(place for key, inner in steps for place in places(inner, (*path, key)))]


def replaced(value: Any, path: tuple[str | int, ...], new: object) -> Any:
    """A copy of ``value`` with ``new`` at ``path``."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


def check(adapter: GenerationAdapter, body: dict[str, Any]) -> None:
    """An Ask, or a refusal that is valid JSON, in UTF-8, and short."""
    refused: ErrorBody | None = None
    try:
        adapter.structure(body, Policy(vocabulary=100, session_header="ok"))
    except RequestError as error:
        refused = error.body
    if refused is not None:
        assert json.dumps(refused.as_wire(), ensure_ascii=False).encode()
        assert len(refused.message) < 300
        assert len(refused.param or "") <= 64


@pytest.mark.parametrize(("adapter", "seed"), SEEDS, ids=["chat", "completions", "responses"])
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_body_with_anything_anywhere_is_taken_or_refused(
    adapter: GenerationAdapter, seed: dict[str, Any], data: st.DataObject
) -> None:
    """Any JSON value in any place of a good body ends in an Ask or a refusal, never in another error."""
    path = data.draw(st.sampled_from(places(seed)[1:]))
    check(adapter, replaced(seed, path, data.draw(values)))


@pytest.mark.parametrize(("adapter", "seed"), SEEDS, ids=["chat", "completions", "responses"])
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_body_with_anything_in_any_field_is_taken_or_refused(
    adapter: GenerationAdapter, seed: dict[str, Any], data: st.DataObject
) -> None:
    """So does any JSON value in any field of the table, and any unknown field."""
    names = [field.name for field in attrs.fields(adapter.request)]
    check(adapter, {**seed, **data.draw(st.dictionaries(st.sampled_from(names) | texts, values, max_size=3))})


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_mutated_bytes_are_an_object_or_invalid_json(data: st.DataObject) -> None:
    """Bytes cut, doubled or replaced anywhere are read as an object or refused as invalid_json."""
    raw = json.dumps(data.draw(st.sampled_from([seed for _, seed in SEEDS]))).encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, len(raw)))
    junk = data.draw(
        st.binary(max_size=6) | st.sampled_from([b"[" * 70, b"1e999", b"NaN", b"9" * 4001, b"\\ud83d"])
    )
    found: object
    try:
        found = parse_body(raw[:start] + junk + raw[end:])
    except InvalidJson as error:
        found = error.body.as_wire()
    assert isinstance(found, dict)
