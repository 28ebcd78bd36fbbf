"""Words, made-up words and numbers to fill conversations with; each list is split into training and
evaluation.
"""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any, Literal, Self

Split = Literal["train", "heldout"]
Pool = dict[Split, tuple[str, ...]]


def _tables() -> dict[str, dict[str, Any]]:
    with (Path(__file__).parent / "phrases" / "words.toml").open("rb") as file:
        return tomllib.load(file)


_TABLES = _tables()
_PIECES: dict[str, list[str]] = {name: text.split() for name, text in _TABLES["pieces"].items()}


def _pool(name: str) -> Pool:
    return {
        "train": tuple(_TABLES[name]["train"].split()),
        "heldout": tuple(_TABLES[name]["heldout"].split()),
    }


NAMES, PLACES, THINGS = _pool("names"), _pool("places"), _pool("things")


class Draws(random.Random):
    """A random generator; `variety` is the share of made-up words that are spelled like English ones."""

    def __init__(self, seed: str | int, variety: float = 0.0) -> None:
        super().__init__(seed)
        self.variety = variety

    def __new__(cls, seed: str | int, variety: float = 0.0) -> Self:
        """The base class takes the seed alone."""
        return super().__new__(cls, seed)  # type: ignore[call-arg]


def made_up_word(rng: random.Random) -> str:
    """A lower-case word of one to four syllables that no list holds: it can only be copied, never
    remembered.
    """
    if isinstance(rng, Draws) and rng.variety and rng.random() < rng.variety:
        return "".join(_english_like_syllable(rng) for _ in range(rng.choice((1, 2, 2, 3))))
    word = "".join(rng.choice(_PIECES["syllables"]) for _ in range(rng.choice((2, 2, 3, 3, 4))))
    return f"{word}{rng.choice(_PIECES['endings'])}" if rng.random() < 0.5 else word


def _english_like_syllable(rng: random.Random) -> str:
    onset = rng.choice(_PIECES["onsets"]) if rng.random() < 0.85 else ""
    nucleus = rng.choice(_PIECES["nuclei"])
    return onset + nucleus + (rng.choice(_PIECES["codas"]) if rng.random() < 0.45 else "")


def _drawn(pool: Pool, rng: random.Random, split: Split, made_up: float) -> str:
    if split == "train" and rng.random() < made_up:
        return made_up_word(rng).capitalize()
    return rng.choice(pool[split])


def name(rng: random.Random, split: Split) -> str:
    """A person's name; in training most of them are made up, so that copying is learnt instead of a list."""
    return _drawn(NAMES, rng, split, 0.65)


def place(rng: random.Random, split: Split) -> str:
    """A city's name, most of them made up in training."""
    return _drawn(PLACES, rng, split, 0.65)


def thing(rng: random.Random, split: Split) -> str:
    """A common lower-case noun."""
    return rng.choice(THINGS[split])


def number(rng: random.Random) -> int:
    """A whole number of one to four digits."""
    digits = rng.choice((1, 2, 2, 3, 3, 4))
    return int(rng.randrange(10 ** (digits - 1), 10**digits))
