"""maple top: a server's requests, live on a terminal and in lines elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from maple_testing.guard import HANG_GUARD

from maple.engine.admission import QueueLimits
from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import LiveServer, Serve

pexpect = pytest.importorskip("pexpect", reason="drives the terminal")

SLOW = Recording(pieces=tuple("abcdefghij" * 100), delay_ms=20)


def command(server: LiveServer, *words: str) -> list[str]:
    return [sys.executable, "-m", "maple", "top", "--url", f"http://127.0.0.1:{server.port}", *words]


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=HANG_GUARD, check=False, **options)


def test_a_terminal_is_drawn_on_until_ctrl_c(serve: Serve) -> None:
    """Requests come and go on one screen, which is left as it was found; nothing wider than the terminal."""
    server = serve(SLOW, queue=QueueLimits(slots=1))
    words = command(server, "--interval", "0.1")
    child = pexpect.spawn(words[0], words[1:], encoding="utf-8", timeout=HANG_GUARD, dimensions=(10, 40))
    child.expect_exact("\x1b[?1049h")
    child.expect_exact("0 of 1 slots in use, 0 waiting")
    with server.open_stream() as first, server.open_stream():
        server.read_until(first, b"data:")
        child.expect_exact("1 of 1 slots in use, 1 waiting")
        child.expect("decode")
        child.expect("queued")
    child.expect_exact("0 of 1 slots in use, 0 waiting")
    child.sendintr()
    child.expect_exact("\x1b[?1049l")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_elsewhere_it_writes_lines(server: LiveServer) -> None:
    """A table or JSON, once or for ever; a reader that has seen enough ends it without a word."""
    table = run(*command(server, "--once"))
    assert (table.returncode, table.stderr) == (0, "")
    assert table.stdout.startswith("0 of ")
    assert "\x1b" not in table.stdout
    seen = json.loads(run(*command(server, "--once", "--json")).stdout)
    assert seen["data"] == []
    endless = " ".join(command(server, "--json", "--interval", "0.1"))
    head = run("sh", "-c", f"{endless} | head -n 2")
    assert [json.loads(line)["object"] for line in head.stdout.splitlines()] == ["list", "list"]
    assert head.stderr == ""


def test_what_is_wrong_is_one_line(serve: Serve) -> None:
    """No server, a wrong key, a wrong flag."""
    key = "secret-key-of-this-test"
    server = serve(api_key=key)
    nobody = run(sys.executable, "-m", "maple", "top", "--once", "--url", "http://127.0.0.1:9")
    assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1)
    refused = run(*command(server, "--once"))
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "401" in refused.stderr
    assert run(*command(server, "--once"), env={**os.environ, "MAPLE_API_KEY": key}).returncode == 0
    assert run(*command(server, "--interval", "0")).returncode == 2
