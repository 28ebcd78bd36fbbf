"""`maple chat` at a pseudo-terminal, with a real server that plays recordings behind it."""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pexpect = pytest.importorskip("pexpect", reason="drives the terminal")

SCRIPT = (
    {"match": "slow", "pieces": ["Hm.", "</think>", *["word "] * 3000], "delay_ms": 20},
    {"match": "evil", "pieces": ["</think>", "a\x1b[2Jb"]},
    {"match": "", "pieces": ["Two plus two.", "</think>", "Four."]},
)


@pytest.fixture
def chat(tmp_path: pathlib.Path) -> Iterator[Any]:
    """The command with a server of its own."""
    script = tmp_path / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT), encoding="utf-8")
    words = ["-m", "maple", "chat", "--scripted", str(script)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAPLE_")}
    environment = {**clean, "MAPLE_CACHE_DIR": str(tmp_path), "TERM": "xterm", "HF_HUB_OFFLINE": "1"}
    child = pexpect.spawn(sys.executable, words, env=environment, encoding="utf-8", timeout=60, cwd=tmp_path)
    try:
        child.expect("/help lists")
        yield child
    finally:
        child.close(force=True)


def test_a_conversation_in_a_terminal(chat: Any, tmp_path: pathlib.Path) -> None:
    """Reasoning folds and unfolds, Ctrl-C stops one answer, escapes stay text, Ctrl-D leaves with 0."""
    chat.expect("> ")
    chat.sendline("sum")
    chat.expect(r"thought for \d+\.\d s · 3 words \(/think")
    chat.expect(r"Four\.")
    chat.expect(r"\d+ tokens · [\d.]+ tokens/s")
    chat.expect("> ")
    chat.sendline("/think")
    chat.expect(r"Two plus two\.")
    chat.sendline("evil")
    chat.expect_exact("a\\x1b[2Jb")
    chat.expect("tokens/s")
    chat.sendline("slow")
    chat.expect("word word")
    chat.sendintr()
    chat.expect("stopped")
    chat.expect("> ")
    chat.sendline("/save kept.json")
    chat.expect("saved 6 messages")
    chat.sendeof()
    chat.expect(pexpect.EOF)
    chat.close()
    assert chat.exitstatus == 0
    kept = json.loads((tmp_path / "kept.json").read_text("utf-8"))["messages"]
    assert kept[-1]["content"].startswith("word word")
