"""The engine's benchmark runs on the embedded model. Its times mean nothing there; its facts do."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from maple_testing.guard import HANG_GUARD

from maple.native.library import Unavailable, available

pytestmark = pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="the kernels, which are measured, are not built here"
)

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "engine" / "full_size.py"


def run_script(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=HANG_GUARD,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one quick run of every part wrote."""
    folder = tmp_path_factory.mktemp("engine")
    files = "--json", str(folder / "out.json"), "--picture", str(folder / "pauses.svg")
    done = run_script("--quick", "--threads", "1", "--rounds", "1", *files)
    assert done.returncode == 0, done.stderr
    assert "</svg>" in (folder / "pauses.svg").read_text()
    content: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return content


def test_every_part_runs(found: dict[str, Any]) -> None:
    """In the order of the help, with rates, ratios and times above zero."""
    assert list(found) == ["batch", "pause", "loaded", "http", "reuse", "restart", "prefix", "memory"]
    assert found["batch"]["ratio"] > 0
    assert found["loaded"]["slower"] > 0
    assert found["loaded"]["busy_loops"] == os.cpu_count()


def test_every_chunk_of_a_joining_prompt_is_timed(found: dict[str, Any]) -> None:
    """The bound allows for the longest of them."""
    pause = found["pause"]
    assert pause["chunk_s"] == max(pause["chunks_s"]) > 0
    assert len(pause["chunks_s"]) <= 1536 / 512
    assert pause["bound_s"] == pytest.approx(3 * pause["steady_s"] + pause["chunk_s"])


def test_the_server_is_measured_against_the_engine(found: dict[str, Any]) -> None:
    """Both run natively; a first token comes after its prefill, never before."""
    http = found["http"]
    assert http["server"].startswith("native ")
    assert http["streaming"]["ratio"] > 0
    assert list(http["first_token"]) == ["64", "256"]
    for answer in http["first_token"].values():
        assert min(answer["each_ms"]) > 0
        assert 0 < answer["prefill_s"] < answer["http_s"]


def test_what_was_computed_before_is_used_again(found: dict[str, Any]) -> None:
    """In each form of a second turn, and after a restart, with the same text."""
    forms = {name: form["cached"] for name, form in found["reuse"].items() if name != "cold_s"}
    assert forms == {
        "reasoning_sent_back": 600,
        "reasoning_dropped": 400,
        "system_prompt_shared": 600,
        "last_message_edited": 595,
    }
    assert found["restart"]["same_text"]
    assert found["restart"]["cached"] >= 600
    assert found["prefix"]["same_text"]
    assert found["prefix"]["cached"] == 1499 // 64 * 64
    assert found["prefix"]["mib"] > 0


def test_prompts_are_answered_in_order_within_the_budget(found: dict[str, Any]) -> None:
    assert found["memory"]["in_order"]
    assert 0 < found["memory"]["kv_peak_mib"] <= found["memory"]["budget_mib"]


def test_a_model_must_be_named() -> None:
    done = run_script()
    assert done.returncode == 2
    assert "which MODEL?" in done.stderr
