"""The phrase tables in phrases/*.toml: what is said is data, how conversations are built from it is code."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from tools.sapling.words import Split

FOLDER = Path(__file__).parent / "phrases"


@cache
def table(name: str) -> dict[str, Any]:
    """The content of phrases/<name>.toml; not to be changed."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def both(entry: dict[str, Any]) -> dict[Split, tuple[str, ...]]:
    """The ``train`` and ``heldout`` lists of an entry."""
    return {"train": tuple(entry["train"]), "heldout": tuple(entry["heldout"])}
