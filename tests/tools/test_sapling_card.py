"""The model card says what was reached, what was missed, and how the weights came about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.sapling.card import card
from tools.sapling.recipe import Recipe

STATE = {"step": 1200, "tokens": 3_072_000, "seconds": 5400.0}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\0" * 2_220_000)
    return path


def result(kind: str, right: float, target: int | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "thinking": True,
        "asked": 200,
        "right": right,
        "closed": 100.0,
        "target": target,
        "seconds": 1.0,
    }


def test_a_kind_below_its_target_is_named_and_others_are_not(weights: Path) -> None:
    """Kinds without a target are in the table alone."""
    results = [result("tool_call", 82.0, 90), result("sum", 100.0, 95), result("talk", 10.0, None)]
    text = card(results, STATE, Recipe(), weights)
    assert "Below what was aimed at: tool_call (82.0 % of 90 %).\n" in text
    assert "Below" not in card(results[1:], STATE, Recipe(), weights)


def test_the_card_has_the_runs_own_figures_and_its_history(weights: Path) -> None:
    """What the recipe cannot know is a paragraph of its own, and only there where a run has one."""
    results = [result("sum", 100.0, 95)]
    plain = card(results, STATE, Recipe(), weights)
    told = card(results, STATE, Recipe(), weights, "Made in two pieces.\n")
    for figure in ("3.1 million\ntokens in 1,200 steps", "1.5 hours", "2.22 MB"):
        assert figure in plain
    assert told.replace("Made in two pieces.\n\n", "") == plain != told
