"""Encoders over the real tokenizer and template, and over the golden checkpoints' small one."""

from __future__ import annotations

import pathlib

import pytest

from maple.prompt.encode import PromptEncoder


@pytest.fixture(scope="session")
def maple_encoder(maple_tokenizer_folder: pathlib.Path) -> PromptEncoder:
    """Maple-Preview's own tokenizer and template."""
    return PromptEncoder(maple_tokenizer_folder)


@pytest.fixture(scope="session")
def golden_encoder(golden_folder: pathlib.Path) -> PromptEncoder:
    """The 512-token tokenizer of the golden checkpoints, whose control tokens are ids 0..8."""
    return PromptEncoder(golden_folder / "mlx-2bit")


@pytest.fixture(params=["maple", "golden"])
def encoder(
    request: pytest.FixtureRequest, maple_encoder: PromptEncoder, golden_encoder: PromptEncoder
) -> PromptEncoder:
    """Either of them."""
    return maple_encoder if request.param == "maple" else golden_encoder
