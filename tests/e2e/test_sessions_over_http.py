"""Sessions through whole servers: saved over HTTP, killed, started again, and gone on with."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import pytest

from maple.cli.main import main

GREEDY = {"temperature": 0, "max_tokens": 12, "session_id": "s"}
STORY = "Once upon a time there was a maple tree. " * 12


def said(answer: Any) -> tuple[Any, int]:
    """The message, and how much of its prompt was reused."""
    assert answer.status == 200, answer.body
    usage = answer.json["usage"]
    return answer.json["choices"][0]["message"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture
def settings(tmp_path: pathlib.Path) -> dict[str, str]:
    return {
        "MAPLE_SESSION_DIR": str(tmp_path / "sessions"),
        "MAPLE_MAX_BATCH": "4",
        "MAPLE_KV_CACHE_MB": "64",
    }


def test_a_session_outlives_a_killed_server(
    start_server: Any, settings: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Save, kill -9, start, load: the same greedy text, and most of its prompt was there."""
    first = start_server("--demo", settings=settings)
    first.wait_for_health("ok")
    said(first.chat(STORY, **GREEDY))
    manifest = first.request("POST", "/v1/sessions/s/save").json
    assert manifest["session_id"] == "s"
    assert first.request("GET", "/v1/sessions/s/manifest").json == manifest
    assert main(["sessions", "--session-dir", settings["MAPLE_SESSION_DIR"]]) == 0
    assert f"s {'':30}" in (listed := capsys.readouterr().out)
    assert manifest["model"] in listed
    message, cached = said(first.chat(STORY, **GREEDY))
    assert cached > 0
    first.expected_code = -signal.SIGKILL
    first.stop(signal.SIGKILL)

    second = start_server("--demo", settings=settings)
    second.wait_for_health("ok")
    loaded = second.request("POST", "/v1/sessions/s/load", {})
    assert (loaded.status, loaded.json["tokens"]) == (200, manifest["tokens"])
    assert said(second.chat(STORY, **GREEDY)) == (message, cached)
    gone = second.request("DELETE", "/v1/sessions/s")
    assert gone.json == {"id": "s", "object": "session.deleted", "deleted": True}
    for method, path in (("POST", "save"), ("POST", "load"), ("GET", "manifest")):
        assert second.request(method, f"/v1/sessions/s/{path}").status == 404


def test_a_tampered_session_is_422(start_server: Any, settings: dict[str, str]) -> None:
    """Manifest and data alike, and the server goes on."""
    server = start_server("--demo", settings=settings)
    server.wait_for_health("ok")
    said(server.chat(STORY, **GREEDY))
    assert server.request("POST", "/v1/sessions/s/save").status == 200
    folder = pathlib.Path(settings["MAPLE_SESSION_DIR"])
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        answer = server.request("POST", "/v1/sessions/s/load")
        assert (answer.status, answer.json["error"]["code"]) == (422, "tampered")
        path.write_bytes(content)
    assert server.request("POST", "/v1/sessions/s/load").status == 200


def test_no_room_is_507(start_server: Any, settings: dict[str, str]) -> None:
    """A session larger than the limit is not saved."""
    server = start_server("--demo", settings={**settings, "MAPLE_SESSION_MAX_MB": "1"})
    server.wait_for_health("ok")
    said(server.chat(STORY * 12, **GREEDY))
    answer = server.request("POST", "/v1/sessions/s/save")
    assert (answer.status, answer.json["error"]["code"]) == (507, "storage_full")
    assert server.request("GET", "/v1/sessions/s/manifest").status == 404
