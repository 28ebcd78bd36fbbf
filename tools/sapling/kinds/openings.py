"""What people say before they ask: listed openings, and in training also random words that mean nothing for the question."""

from __future__ import annotations

import random

from tools.sapling.words import Pool, Split, made_up_name, made_up_word, name, thing

_SIGNS = (", ", ", ", ": ", "! ", ". ", " - ", "? ")
_NOISE = 0.3


def opening(rng: random.Random, split: Split, listed: Pool) -> str:
    """An opening with the space after it, or nothing."""
    if split == "train" and rng.random() < _NOISE:
        return noise(rng)
    return rng.choice(listed[split])


def noise(rng: random.Random) -> str:
    """One to three random words with a sign after them."""
    words = [
        rng.choice((made_up_word, made_up_name, _thing, _name))(rng) for _ in range(rng.choice((1, 2, 2, 3)))
    ]
    text = " ".join(words)
    return (text[0].upper() + text[1:] if rng.random() < 0.7 else text) + rng.choice(_SIGNS)


def _thing(rng: random.Random) -> str:
    return thing(rng, "train")


def _name(rng: random.Random) -> str:
    return name(rng, "train")
