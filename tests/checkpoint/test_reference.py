"""The plain forward pass that fast ones are compared with, against the handed vectors."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from maple_testing.reference import Reference
from safetensors.numpy import load_file


@pytest.mark.parametrize("spelling", ["bf16-stacked", "bf16-per-expert", "mlx-2bit"])
def test_reference_gives_the_golden_logits(spelling: str, golden_folder: pathlib.Path) -> None:
    """Each spelling's logits are those of the independent evaluation, with every weight of a 4-bit head rounded."""
    golden = load_file(golden_folder / "golden.safetensors")
    family = "mlx2bit" if spelling == "mlx-2bit" else "bf16"
    model = Reference(golden_folder / spelling, head="rounded")
    for i, ids in enumerate(json.loads((golden_folder / "prompts.json").read_text())["prompts"]):
        assert np.abs(model.logits(ids) - golden[f"{family}.{i}.fp64"]).max() < 1e-4


def test_reference_gives_the_vectors_of_an_exact_head(golden_folder: pathlib.Path) -> None:
    """What every path's 4-bit head must answer is this evaluation, no weight of the head rounded."""
    wanted = load_file(golden_folder.parent / "exact_head.safetensors")
    model = Reference(golden_folder / "mlx-2bit", head="exact")
    for i, ids in enumerate(json.loads((golden_folder / "prompts.json").read_text())["prompts"]):
        assert np.abs(model.logits(ids) - wanted[f"mlx2bit.{i}.exact"]).max() < 1e-4


def test_exact_head_differs_by_what_rounding_takes(golden_folder: pathlib.Path) -> None:
    """A 4-bit head that is not rounded gives other logits, by less than the bound of bf16 computing."""
    rounded, exact = (
        Reference(golden_folder / "mlx-2bit", head=head).logits([5, 17, 300]) for head in ("rounded", "exact")
    )
    assert 1e-3 < np.abs(rounded - exact).max() < 0.15
