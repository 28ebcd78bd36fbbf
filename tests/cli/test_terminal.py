"""``maple serve`` in front of a person."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from maple_testing.guard import HANG_GUARD

from maple.native.library import Unavailable, available
from maple.terminal import reachable

pexpect = pytest.importorskip("pexpect", reason="drives the terminal")


def spawn(words: Sequence[str], folder: Any, **variables: str) -> Any:
    """A server on a terminal, with a cache folder of its own."""
    environment = {**os.environ, "MAPLE_CACHE_DIR": str(folder), "HF_HUB_OFFLINE": "1", **variables}
    return pexpect.spawn(
        sys.executable,
        ["-m", "maple", "--port", "0", *words],
        encoding="utf-8",
        timeout=HANG_GUARD,
        env=environment,
    )


def ended(child: Any) -> str:
    """What a server said until its end, without the characters that move a cursor."""
    child.expect(pexpect.EOF)
    child.close()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", str(child.before))


def test_it_says_what_it_loads_where_to_go_and_how_to_end(tmp_path: Any) -> None:
    """Two lines, and nothing of the log below its warnings; Ctrl-C ends it with code 0."""
    child = spawn(["--demo", "--host", "0.0.0.0", "--allowed-hosts", "x"], tmp_path, MAPLE_API_KEY="k")
    child.expect(r"Maple Server \S+ · loading the small demonstration model, served as maple-sapling\r\n")
    child.expect(r"Chat: http://127\.0\.0\.1:\d+/ui · API: http://127\.0\.0\.1:\d+/v1 · Ctrl-C ends")
    assert "server." not in child.before
    child.sendintr()
    assert "server." not in ended(child)
    assert child.exitstatus == 0


def test_whoever_asks_for_the_log_gets_it(tmp_path: Any) -> None:
    """A level that was named holds on a terminal too."""
    child = spawn(["--scripted", "examples/shout.jsonl", "--log-level", "info"], tmp_path)
    child.expect("server.listening")
    child.expect("Ctrl-C ends")
    child.sendintr()
    assert "server.stopped" in ended(child)


def test_a_browser_is_opened_where_one_is_wanted(tmp_path: Any) -> None:
    """Once the model answers; BROWSER names a program, as ever."""
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\necho opened $1.\n")
    browser.chmod(0o755)
    child = spawn(["--scripted", "examples/shout.jsonl", "--open"], tmp_path, BROWSER=f"{browser} %s")
    child.expect(r"Chat: (\S+) ")
    child.expect_exact(f"opened {child.match[1]}.")
    child.sendintr()
    ended(child)


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("::1", "[::1]"),
        ("10.1.2.3", "10.1.2.3"),
        ("maple", "maple"),
    ],
)
def test_the_address_that_is_told_can_be_gone_to(host: str, shown: str) -> None:
    """Every address is listened on, and none of them is one."""
    assert reachable(host, 8000) == f"http://{shown}:8000"


def test_a_wrong_path_ends_with_one_line(tmp_path: Any) -> None:
    """Exit 1: a person would wait for a server that never serves."""
    child = spawn(["--model-path", str(tmp_path / "missing")], tmp_path)
    child.expect("served as maple-preview\r\n")
    said = [line for line in ended(child).splitlines() if line]
    assert said == ["maple: model folder missing does not exist"]
    assert child.exitstatus == 1


@pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="nothing can be measured without the kernels"
)
def test_gigabytes_are_not_written_unasked(tmp_path: Any) -> None:
    """``maple bench`` asks at a terminal before it writes a model; no is the default."""
    words = ["-m", "maple", "bench", "--folder", str(tmp_path)]
    child = pexpect.spawn(sys.executable, words, encoding="utf-8", timeout=HANG_GUARD)
    child.expect(r"A random model of full size \(5\.3 GB\) .* Go on\? \[y/N\] ")
    child.sendline("")
    assert "nothing was written" in ended(child)
    assert child.exitstatus == 1
    assert not list(tmp_path.iterdir())
