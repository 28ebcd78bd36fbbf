"""The shared HTTP cases whose outcome the protocol layer alone decides, without a server."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Literal

import pytest
from maple_protocols.adapter import GenerationAdapter, Policy
from maple_protocols.errors import ErrorBody, RequestError
from maple_protocols.json import parse_body
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.completions import CompletionsAdapter
from maple_protocols.openai.responses import ResponsesAdapter

CASES = pathlib.Path(__file__).parent.parent / "data" / "cases" / "http.jsonl"
ADAPTERS: dict[str, GenerationAdapter] = {
    adapter.path: adapter for adapter in (ChatAdapter(), CompletionsAdapter(), ResponsesAdapter())
}
BEYOND = {404, 415}
"""Statuses that other layers decide on; the body itself is fine."""


def cases() -> list[Any]:
    lines = map(json.loads, CASES.read_text("utf-8").splitlines())
    posts = [case for case in lines if case["method"] == "POST" and case["path"] in ADAPTERS]
    return [pytest.param(case, id=case["name"]) for case in posts]


def outcome(case: dict[str, Any]) -> ErrorBody | None:
    raw = case["raw"] if "raw" in case else json.dumps(case["body"])
    strict: Literal["true", "auto"] = "true" if case["server"] == "strict_fields" else "auto"
    try:
        ADAPTERS[case["path"]].structure(
            parse_body(raw.encode()), Policy(vocabulary=151_669, strict_fields=strict)
        )
    except RequestError as error:
        return error.body
    return None


@pytest.mark.parametrize("case", cases())
def test_case(case: dict[str, Any]) -> None:
    """A body is refused exactly where the case says 400, with its type, param, code and message."""
    body = outcome(case)
    if case["status"] == 200 or case["status"] in BEYOND:
        assert body is None
    else:
        assert body is not None
        wire: Any = body.as_wire()["error"]
        assert set(wire) == {"message", "type", "param", "code"}
        assert {key: wire[key] for key in case["error"]} == case["error"]
