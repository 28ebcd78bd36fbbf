"""The handed HTTP cases, against the scripted engine."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import Serve

CASES = [
    json.loads(line)
    for line in (pathlib.Path(__file__).parents[1] / "data/cases/http.jsonl").read_text().splitlines()
]
SERVERS: dict[str, dict[str, Any]] = {
    "default": {},
    "strict_fields": {"strict_fields": "true"},
    "strict_model": {"strict_model": True},
    "key": {"api_key": "secret"},
    "limit8": {"max_new_tokens_limit": 8},
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(serve: Serve, tmp_path: pathlib.Path, case: dict[str, Any]) -> None:
    """Status, error, answer and headers are as the case says."""
    words = Recording(pieces=(*("hm" for _ in range(20)), "</think>", "done"))
    server = serve(words, session_dir=tmp_path, **SERVERS[case["server"]])
    body = case["raw"].encode() if "raw" in case else case.get("body")
    answer = server.request(case["method"], case["path"], body, case.get("headers"))
    assert answer.status == case["status"]
    if "error" in case:
        found = answer.error
        assert {key: found[key] for key in case["error"]} == case["error"]
    for path, value in case.get("expect", {}).items():
        assert at(answer.json, path) == value
    for name, value in case.get("expect_headers", {}).items():
        assert answer.headers[name] == value


def at(value: Any, path: str) -> Any:
    """The value at a dotted path; numbers are list indices."""
    for step in path.split("."):
        value = value[int(step) if step.isdecimal() else step]
    return value


def test_no_case_is_left_out_by_mistake() -> None:
    """The handed file has so many lines."""
    assert len(CASES) == 99
