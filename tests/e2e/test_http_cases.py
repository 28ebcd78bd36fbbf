"""The handed request cases against live servers with the package's own model, one test a line."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

CASES_FILE = pathlib.Path(__file__).parent.parent / "data" / "cases" / "http.jsonl"
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "strict_fields": {"MAPLE_STRICT_FIELDS": "true"},
    "strict_model": {"MAPLE_STRICT_MODEL": "true"},
    "key": {"MAPLE_API_KEY": "secret"},
    "limit8": {"MAPLE_MAX_NEW_TOKENS_LIMIT": "8"},
}
CASES = [json.loads(line) for line in CASES_FILE.read_text(encoding="utf-8").splitlines()]
ServerOf = Callable[[str], Any]


@pytest.fixture(scope="module")
def server_of(start_session_server: Any, tmp_path_factory: pytest.TempPathFactory) -> ServerOf:
    """The server of a case's kind, started when it is first asked for."""
    started: dict[str, Any] = {}

    def get(kind: str) -> Any:
        if kind not in started:
            common = {
                "MAPLE_MODEL_ID": "maple-preview",
                "MAPLE_SESSION_DIR": str(tmp_path_factory.mktemp("sessions")),
            }
            started[kind] = start_session_server("--demo", settings={**common, **SETTINGS[kind]})
        return started[kind]

    return get


def send(server: Any, case: Mapping[str, Any]) -> Any:
    body = case["raw"].encode() if "raw" in case else case.get("body")
    with server.client() as client:
        return client.request(case["method"], case["path"], body, case.get("headers"))


def at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[int(key) if isinstance(document, list) else key]
    return document


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(server_of: ServerOf, case: Mapping[str, Any]) -> None:
    """The answer has the status, the error, the values and the headers that the line tells."""
    answer = send(server_of(case["server"]), case)
    assert answer.status == case["status"], answer.body
    assert answer.headers["X-Request-Id"]
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    if "error" in case:
        error = answer.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error | case["error"] == error
    for path, value in case.get("expect", {}).items():
        assert at(answer.json, path) == value
    for name, value in case.get("expect_headers", {}).items():
        assert answer.headers[name] == value
