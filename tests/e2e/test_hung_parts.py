"""What the server waits for may never answer: others go on meanwhile, and SIGTERM ends it in time."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from maple_testing.guard import HANG_GUARD

from maple.choose_engine import DEMO_FOLDER

ENDING = 5.0
"""Seconds beyond the drain in which the process must be gone."""

NEVER = """
import os, sys, time

def hang(event, arguments):
    if event in ("open", "socket.getaddrinfo") and str(arguments[0]) == os.environ["NEVER_ANSWERS"]:
        os.write(2, b'{"event": "hangs"}\\n')
        time.sleep(1e6)

sys.addaudithook(hang)
"""
"""In the server's process: opening one file, or looking one host up, takes for ever."""


@pytest.fixture
def hanging(start_server: Any, tmp_path: pathlib.Path) -> Any:
    """``hanging(what, *flags, ready=, settings=)``: a server that waits for a path or a host by now."""

    def start(what: str, *flags: str, ready: bool, settings: Mapping[str, str] | None = None) -> Any:
        (tmp_path / "hook").mkdir()
        (tmp_path / "hook" / "sitecustomize.py").write_text(NEVER)
        hook = {"PYTHONPATH": str(tmp_path / "hook"), "NEVER_ANSWERS": what, **(settings or {})}
        return start_server(*flags, "--drain-timeout", "1", ready=ready, settings=hook)

    return start


def assert_ends(server: Any) -> None:
    """With 0, or with 1 where a thread had to be left behind: in the drain's second and five more, by its own clock."""
    server.tell()
    assert server.process.wait(timeout=HANG_GUARD) in (0, 1)
    server.expected_code = server.process.returncode
    last = server.wait_for("server.ended_anyway", "server.stopped")
    assert last.get("seconds", 0) <= 1 + ENDING


def test_a_pack_that_cannot_be_read(hanging: Any, tmp_path: pathlib.Path) -> None:
    """Its disk hangs while it is loaded."""
    pack = tmp_path / "pack"
    command = [sys.executable, "-m", "maple", "pack", str(DEMO_FOLDER), str(pack)]
    subprocess.run(command, check=True, capture_output=True)
    server = hanging(str(pack / "model.safetensors"), "--model-path", str(pack), ready=False)
    server.wait_for("hangs")
    assert server.request("GET", "/healthz").status == 200
    assert server.chat("hi").status == 503
    assert_ends(server)


def test_a_hub_whose_name_nobody_resolves(hanging: Any) -> None:
    """The model is still to be fetched."""
    settings = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://hub.invalid", "HF_HUB_DISABLE_XET": "1"}
    server = hanging("hub.invalid", "--model-path", "somebody/maple", ready=False, settings=settings)
    server.wait_for("hangs")
    assert server.request("GET", "/healthz").status == 200
    assert server.chat("hi").status == 503
    assert_ends(server)


def test_a_collector_whose_name_nobody_resolves(hanging: Any, write_script: Any) -> None:
    """Traces wait for it, answers do not."""
    pytest.importorskip("opentelemetry.sdk", reason="traces need the otel extra")
    script = write_script({"match": None, "pieces": ["hello"]})
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.invalid:4318",
        "OTEL_BSP_SCHEDULE_DELAY": "1",
    }
    server = hanging("collector.invalid", "--scripted", script, ready=True, settings=settings)
    assert server.chat("hi").status == 200
    server.wait_for("hangs")
    for _ in range(3):
        assert server.chat("hi").status == 200
    assert_ends(server)
