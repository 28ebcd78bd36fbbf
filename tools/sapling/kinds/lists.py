"""Short lists of words: repeated, upper-cased, counted and sorted."""

from __future__ import annotations

import random

from tools.sapling.conversation import Exchange, Reply, user
from tools.sapling.words import THINGS, Split, made_up_word

_REPEAT: dict[Split, tuple[str, ...]] = {
    "train": ("Repeat: {w}", "Repeat after me: {w}", "Say {w}", "Please repeat these words: {w}", "Echo: {w}", "Say this again: {w}",
              "Repeat the words {w}.", "Write this: {w}"),
    "heldout": ("Please say: {w}", "Repeat this: {w}", "Echo these words: {w}"),
}
_UPPER: dict[Split, tuple[str, ...]] = {
    "train": ("Upper-case: {w}", "Write in capital letters: {w}", "Make these words upper case: {w}", "Put {w} in upper case.",
              "Capital letters, please: {w}", "Uppercase these words: {w}", "Turn {w} into capital letters."),
    "heldout": ("Write {w} in upper case.", "Upper case, please: {w}", "Make these capital letters: {w}"),
}
_COUNT: dict[Split, tuple[str, ...]] = {
    "train": ("Count the words: {w}", "How many words are here: {w}", "How many words are in this list: {w}", "Count these words: {w}",
              "Count: {w}", "How many words do you see: {w}", "Tell me how many words are in: {w}"),
    "heldout": ("Please count the words: {w}", "How many words: {w}", "Count the words in this list: {w}"),
}
_SORT: dict[Split, tuple[str, ...]] = {
    "train": ("Sort: {w}", "Sort these words: {w}", "Put in alphabetical order: {w}", "Sort these words from a to z: {w}",
              "Order these words by the alphabet: {w}", "Sort the list {w}.", "Alphabetical order, please: {w}"),
    "heldout": ("Please sort: {w}", "Put these words in alphabetical order: {w}", "Sort this list: {w}"),
}
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def _words(rng: random.Random, split: Split, count: int, made_up: float = 0.0) -> list[str]:
    if split == "heldout":
        return rng.sample(THINGS["train"], count) if not made_up else rng.sample(THINGS["heldout"], count)
    return [made_up_word(rng) if rng.random() < made_up else rng.choice(THINGS["train"]) for _ in range(count)]


def _spelled(rng: random.Random, words: list[str]) -> str:
    return rng.choice((", ", ", ", " ")).join(words)


def repeat(rng: random.Random, split: Split) -> Exchange:
    """Two to six words, unseen ones too, said again."""
    words = _spelled(rng, _words(rng, split, rng.randint(1, 6), 0.5))
    return Exchange(
        asked=user(rng.choice(_REPEAT[split]).format(w=words)),
        reply=Reply(reasoning="I say the same words again.", content=words),
        kind="repeat",
        expect={"equals": words},
    )


def upper(rng: random.Random, split: Split) -> Exchange:
    """One to five known words in capital letters."""
    words = ", ".join(_words(rng, split, rng.randint(1, 5)))
    return Exchange(
        asked=user(rng.choice(_UPPER[split]).format(w=words)),
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
        asked=user(rng.choice(_COUNT[split]).format(w=_spelled(rng, words))),
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
        asked=user(rng.choice(_SORT[split]).format(w=", ".join(words))),
        reply=Reply(reasoning=working, content=answer),
        kind="sort",
        expect={"equals": answer},
    )
