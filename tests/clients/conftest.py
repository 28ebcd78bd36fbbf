"""Clients as their authors ship them, against a scripted server, where nothing but loopback can be reached.

Run by ``tox -e clients``, which installs them and names their folder in CLIENTS_FOLDER.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from maple_testing.client_wire import Recorder
from maple_testing.guard import HANG_GUARD

StartScript = Callable[[Sequence[dict[str, Any]]], Recorder]
RunClient = Callable[..., str]


@pytest.fixture
def clients() -> pathlib.Path:
    """Where ``install.py`` put the clients."""
    if "CLIENTS_FOLDER" not in os.environ:
        pytest.skip("run by tox -e clients")
    return pathlib.Path(os.environ["CLIENTS_FOLDER"])


@pytest.fixture
def start_script(tmp_path: pathlib.Path) -> Iterator[StartScript]:
    """Serve a script at the extended level, with a recorder in front."""
    started: list[subprocess.Popen[str]] = []
    recorders: list[Recorder] = []

    def start(lines: Sequence[dict[str, Any]]) -> Recorder:
        assert [name for _, name in socket.if_nameindex()] == ["lo"], "run in a namespace with loopback only"
        script = tmp_path / "script.jsonl"
        script.write_text("\n".join(map(json.dumps, lines)), "utf-8")
        flags = ["--port", "0", "--api-level", "extended", "--scripted", str(script)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MAPLE_")}
        server = subprocess.Popen(
            [sys.executable, "-m", "maple", "--log-format", "json", *flags],
            stderr=subprocess.STDOUT,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        started.append(server)
        recorders.append(Recorder(_port(server)))
        return recorders[-1]

    yield start
    for server in started:
        server.terminate()
        server.communicate(timeout=HANG_GUARD)
    for recorder in recorders:
        recorder.close()


def _port(server: subprocess.Popen[str]) -> int:
    """The port, once the server is ready."""
    assert server.stdout is not None
    port = 0
    for line in server.stdout:
        event = json.loads(line)
        port = event.get("port", port)
        if event["event"] == "server.ready":
            return port
    raise AssertionError("the server did not start")


@pytest.fixture
def run_client(tmp_path: pathlib.Path) -> RunClient:
    """Run a command in a home of its own; returns what it prints. ``files`` are written into the home first."""

    def run(*words: str, files: dict[str, str] | None = None, **environment: str) -> str:
        home = tmp_path / "home"
        work = home / "work"
        work.mkdir(parents=True, exist_ok=True)
        for name, text in (files or {}).items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text, "utf-8")
        done = subprocess.run(
            words,
            env={**os.environ, "HOME": str(home), "PWD": str(work), **environment},
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=HANG_GUARD,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
