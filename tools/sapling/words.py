"""Words, made-up words and numbers to fill conversations with; each list is split into training and
evaluation.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

Split = Literal["train", "heldout"]
Pool = dict[Split, tuple[str, ...]]
_FOLDER = Path(__file__).parent / "phrases"


def _tables() -> dict[str, dict[str, Any]]:
    with (_FOLDER / "words.toml").open("rb") as file:
        return tomllib.load(file)


_TABLES = _tables()
_PIECES: dict[str, list[str]] = {name: text.split() for name, text in _TABLES["pieces"].items()}


def _pool(name: str) -> Pool:
    return {
        "train": tuple(_TABLES[name]["train"].split()),
        "heldout": tuple(_TABLES[name]["heldout"].split()),
    }


NAMES, PLACES, THINGS = _pool("names"), _pool("places"), _pool("things")


def _reserved() -> frozenset[str]:
    """What only the evaluation may say, in lower case: its names, places, things and the topics of its tools."""
    with (_FOLDER / "tools.toml").open("rb") as file:
        topics = {tool["topic"] for tool in tomllib.load(file)["heldout"]}
    words = (word.lower() for pool in (NAMES, PLACES, THINGS) for word in pool["heldout"])
    return frozenset(topics.union(words))


_RESERVED = _reserved()


class Draws(random.Random):
    """A random generator; a share ``variety`` of its made-up words is joined from ``pieces``, a tokenizer's own.

    So every token is copied often, not only those that the common words are made of.
    """

    def __init__(self, seed: str | int, variety: float = 0.0, pieces: Sequence[str] = ()) -> None:
        super().__init__(seed)
        self.variety = variety
        self.small = [piece for piece in pieces if piece.islower()]
        self.capital = [piece for piece in pieces if piece.istitle()]

    def __new__(cls, seed: str | int, variety: float = 0.0, pieces: Sequence[str] = ()) -> Self:
        """The base class takes the seed alone."""
        return super().__new__(cls, seed)  # type: ignore[call-arg]


def made_up_word(rng: random.Random) -> str:
    """A lower-case word that no list holds: it can only be copied, never remembered."""
    if isinstance(rng, Draws) and rng.variety and rng.random() < rng.variety:
        return _joined(rng, rng.small)
    word = "".join(rng.choice(_PIECES["syllables"]) for _ in range(rng.choice((2, 2, 3, 3, 4))))
    return f"{word}{rng.choice(_PIECES['endings'])}" if rng.random() < 0.5 else word


def made_up_name(rng: random.Random) -> str:
    """A word with a capital letter that no list holds."""
    if isinstance(rng, Draws) and rng.variety and rng.random() < rng.variety:
        return _joined(rng, rng.capital)
    return made_up_word(rng).capitalize()


def _joined(rng: Draws, first: list[str]) -> str:
    while True:
        rest = (rng.choice(rng.small) for _ in range(rng.choice((0, 1, 1, 2))))
        word = "".join([rng.choice(first), *rest])
        if word.lower() not in _RESERVED:
            return word


def _drawn(pool: Pool, rng: random.Random, split: Split, made_up: float) -> str:
    if split == "train" and rng.random() < made_up:
        return made_up_name(rng)
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
