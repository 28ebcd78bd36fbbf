"""Short lists of words: repeated, upper-cased, counted and sorted."""

from __future__ import annotations

import random

from tools.sapling.conversation import Exchange, Reply, user
from tools.sapling.tables import both, table
from tools.sapling.words import THINGS, Split, made_up_word

PHRASINGS = {task: both(entry) for task, entry in table("lists").items()}


def _words(rng: random.Random, split: Split, count: int, made_up: float = 0.0) -> list[str]:
    if split == "heldout":
        return rng.sample(THINGS["train"], count) if not made_up else rng.sample(THINGS["heldout"], count)
    return [
        made_up_word(rng) if rng.random() < made_up else rng.choice(THINGS["train"]) for _ in range(count)
    ]


def _spelled(rng: random.Random, words: list[str]) -> str:
    return rng.choice((", ", ", ", " ")).join(words)


def repeat(rng: random.Random, split: Split) -> Exchange:
    """Two to six words, unseen ones too, said again."""
    words = _spelled(rng, _words(rng, split, rng.randint(1, 6), 0.75))
    return Exchange(
        asked=user(rng.choice(PHRASINGS["repeat"][split]).format(w=words)),
        reply=Reply(reasoning="I say the same words again.", content=words),
        kind="repeat",
        expect={"equals": words},
    )


def upper(rng: random.Random, split: Split) -> Exchange:
    """One to five known words in capital letters."""
    words = ", ".join(_words(rng, split, rng.randint(1, 5)))
    return Exchange(
        asked=user(rng.choice(PHRASINGS["upper"][split]).format(w=words)),
        reply=Reply(reasoning="I write every word in capital letters.", content=words.upper()),
        kind="upper",
        expect={"equals": words.upper()},
    )


def count(rng: random.Random, split: Split) -> Exchange:
    """One to nine words, numbered in the reasoning."""
    words = _words(rng, split, rng.randint(1, 9), 0.0 if split == "heldout" else 0.2)
    working = " ".join(f"{word} {position}" for position, word in enumerate(words, 1))
    answer = f"There are {len(words)} words." if len(words) > 1 else "There is 1 word."
    return Exchange(
        asked=user(rng.choice(PHRASINGS["count"][split]).format(w=_spelled(rng, words))),
        reply=Reply(reasoning=working, content=answer),
        kind="count",
        expect={"number": len(words)},
    )


def sort(rng: random.Random, split: Split) -> Exchange:
    """Two to five known words with different first letters, sorted by way of those letters."""
    size = rng.randint(2, 5)
    while True:
        words = _words(rng, split, size)
        if len({word[0] for word in words}) == size:
            break
    ordered = sorted(words)
    letters = ", ".join(f"{word[0]} {word}" for word in words)
    working = f"{letters}\n" + " ".join(sorted(word[0] for word in words))
    answer = ", ".join(ordered)
    return Exchange(
        asked=user(rng.choice(PHRASINGS["sort"][split]).format(w=", ".join(words))),
        reply=Reply(reasoning=working, content=answer),
        kind="sort",
        expect={"equals": answer},
    )
