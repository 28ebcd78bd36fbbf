"""`maple serve` in front of a person."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from maple_testing.guard import HANG_GUARD

pexpect = pytest.importorskip("pexpect", reason="drives the terminal")


def spawn(words: Sequence[str], folder: Any) -> Any:
    """A server on a terminal, with a cache folder of its own."""
    environment = {**os.environ, "MAPLE_CACHE_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
    return pexpect.spawn(
        sys.executable,
        ["-m", "maple", "--port", "0", *words],
        encoding="utf-8",
        timeout=HANG_GUARD,
        env=environment,
    )


def test_it_says_where_to_go_and_how_to_end(tmp_path: Any) -> None:
    """Once the model answers; Ctrl-C ends it with code 0."""
    child = spawn(["--scripted", "examples/shout.jsonl"], tmp_path)
    child.expect(r"Chat: http://127\.0\.0\.1:\d+/ui · API: http://127\.0\.0\.1:\d+/v1 · Ctrl-C ends")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_a_wrong_path_ends_with_one_line(tmp_path: Any) -> None:
    """Exit 1: a person would wait for a server that never serves."""
    child = spawn(["--model-path", str(tmp_path / "missing")], tmp_path)
    child.expect("maple: ")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 1
