"""20,000 mutated bodies: none is a 500, none leaves a traceback, none hangs."""

from __future__ import annotations

import copy
import json
import pathlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from maple_protocols.adapter import GenerationAdapter, Policy
from maple_protocols.errors import ErrorBody, RequestError
from maple_protocols.json import parse_body
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.completions import CompletionsAdapter
from maple_protocols.openai.responses import ResponsesAdapter

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import Serve

IN_PROCESS = 17_001
OVER_HTTP = 3_000

TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "árbol 🍁"}]},
    {"role": "assistant", "content": "<think>r</think>a", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "t"},
    {"role": "user", "content": "<|im_end|>hi"},
]
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1, "stop": ["x"], "stream": False}
SEEDS: tuple[tuple[GenerationAdapter, dict[str, Any]], ...] = (
    (
        ChatAdapter(),
        {
            "model": "m",
            "messages": MESSAGES,
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": "auto",
            "max_tokens": 3,
            "chat_template_kwargs": {"enable_thinking": True},
            "stream_options": {"include_usage": True},
            "response_format": {"type": "text"},
            **SAMPLING,
        },
    ),
    (CompletionsAdapter(), {"prompt": [[1, 2, 3]], "max_tokens": 3, "n": 1, **SAMPLING}),
    (
        ResponsesAdapter(),
        {
            "input": [
                *MESSAGES[:2],
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "o"},
            ],
            "tools": [{"type": "function", **TOOL}],
            "max_output_tokens": 3,
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "text"}},
            "store": False,
            **SAMPLING,
        },
    ),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2.0, 1.5, 2**63, -(2**63) - 1, 10**400, 1e308, 5e-324),
    *("", " ", "none", "user", "function", "x" * 5000, "\ud800", "\x00", "{}", "[", '{"a":', "<tool_call>"),
    *([], {}, [[]], [None], {"type": "text"}, {"type": "image_url"}, {"a": {"b": [1, {"c": None}]}}),
)
TOKENS = (
    *(b"NaN", b"-Infinity", b"1e400", b"9" * 4001, b"\\ud800", b"\\u0000", b"\xff\xfe", b"\xef\xbb\xbf"),
    *(b"[" * 70, b"{" * 70, b"]", b"}", b'"', b"\\", b",", b":", b"null", b"1.0", b'"a":1,"a":2,', b"\x00"),
)


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a value."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    found = [(value, key) for key, _ in pairs]
    return found + [node for _, inner in pairs for node in nodes(inner)]


def with_other_values(dice: random.Random, seed: dict[str, Any]) -> bytes:
    """One to three places replaced, removed, renamed, doubled or wrapped."""
    body = copy.deepcopy(seed)
    for _ in range(dice.randint(1, 3)):
        places = nodes(body)
        if not places:
            break
        holder, key = dice.choice(places)
        match dice.randrange(5):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[dice.choice(["", "n", "type", "role", key + "s"])] = holder.pop(key)
            case 2 if isinstance(holder, list):
                holder.extend(copy.deepcopy(holder[:8]))
            case 3:
                holder[key] = [holder[key]]
            case _:
                holder[key] = copy.deepcopy(dice.choice(VALUES))
    return json.dumps(body).encode()


def with_other_bytes(dice: random.Random, seed: dict[str, Any]) -> bytes:
    """One to four spans cut, doubled, overwritten or filled with what readers trip over."""
    data = bytearray(json.dumps(seed, ensure_ascii=dice.random() < 0.5).encode())
    for _ in range(dice.randint(1, 4)):
        start = dice.randrange(len(data) + 1)
        end = min(len(data), start + dice.choice((0, 1, 1, 2, 8, 64)))
        junk = dice.choice(
            (b"", bytes(data[start:end]) * 2, dice.randbytes(end - start), dice.choice(TOKENS))
        )
        data[start:end] = junk
    return bytes(data)


def mutated(dice: random.Random, seed: dict[str, Any]) -> bytes:
    mutate: Callable[[random.Random, dict[str, Any]], bytes] = dice.choice(
        (with_other_values, with_other_bytes)
    )
    return mutate(dice, seed)


def refusal(adapter: GenerationAdapter, data: bytes) -> ErrorBody | None:
    try:
        adapter.structure(parse_body(data), Policy(vocabulary=512, response_store=True))
    except RequestError as error:
        return error.body
    return None


@pytest.mark.parametrize(("adapter", "seed"), SEEDS, ids=["chat", "completions", "responses"])
def test_mutated_bodies_are_taken_or_refused(adapter: GenerationAdapter, seed: dict[str, Any]) -> None:
    """In process: an Ask or a RequestError that can go out, and some of each."""
    dice = random.Random(17)  # noqa: S311 -- seeded, no secret
    count = IN_PROCESS // len(SEEDS)
    refusals = [body for _ in range(count) if (body := refusal(adapter, mutated(dice, seed)))]
    assert count // 10 < len(refusals) < count
    assert json.dumps([body.as_wire() for body in refusals], ensure_ascii=False).encode()


def test_mutated_bodies_over_http_are_never_a_500(
    serve: Serve, tmp_path: pathlib.Path, log_lines: Any
) -> None:
    """Over sockets, good ones generated: 200 or a refusal of the contract each, at once, and no traceback."""
    server = serve(Recording(pieces=("r", "</think>", "a")), response_store=f"sqlite:{tmp_path}/responses.db")
    dice = random.Random(3)  # noqa: S311 -- seeded, no secret
    connection = server.connection()
    statuses: dict[int, int] = {}
    for _ in range(OVER_HTTP):
        adapter, seed = dice.choice(SEEDS)
        answer = server.ask(connection, "POST", adapter.path, mutated(dice, seed))
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        if answer.status != 200:
            assert b"Traceback" not in answer.body
            assert answer.error["type"] == "invalid_request_error", answer.body
    connection.close()
    server.settle()
    assert set(statuses) <= {200, 400, 404}
    assert min(statuses[200], statuses[400]) > OVER_HTTP // 20
    lines = log_lines()
    assert not [line for line in lines if line["level"] == "error"]
    assert not [line for line in lines if "Traceback" in str(line)]
