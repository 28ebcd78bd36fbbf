"""Something said in an earlier turn, asked for later."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from tools.sapling.conversation import Exchange, Reply, user
from tools.sapling.tables import table
from tools.sapling.words import Split, made_up_word, name, number, place, thing


@attrs.frozen
class Matter:
    """One thing a user may say about themselves: how it is said and asked for, ``{v}`` standing for the
    value.
    """

    key: str
    draw: Callable[[random.Random, Split], str]
    said: tuple[str, ...]
    said_heldout: tuple[str, ...]
    asked: tuple[str, ...]
    asked_heldout: tuple[str, ...]


def _number(rng: random.Random, split: Split) -> str:
    return str(number(rng))


def _word(rng: random.Random, split: Split) -> str:
    return made_up_word(rng)


def _colour(rng: random.Random, split: Split) -> str:
    return (
        made_up_word(rng)
        if rng.random() < 0.3
        else rng.choice(
            ["red", "blue", "green", "yellow", "black", "white", "pink", "brown", "grey", "orange"]
        )
    )


_DRAWS: dict[str, Callable[[random.Random, Split], str]] = {
    "name": name,
    "city": place,
    "number": _number,
    "lucky number": _number,
    "favourite number": _number,
    "room number": _number,
    "favourite colour": _colour,
    "pet": thing,
    "favourite animal": thing,
    "friend": name,
    "sister": name,
    "brother": name,
    "dog": name,
    "cat": name,
    "boss": name,
    "teacher": name,
    "code": _number,
    "age": _number,
    "home town": place,
    "favourite city": place,
    "password": _word,
    "favourite word": _word,
}
_NOTHING_MORE: dict[str, list[str]] = {"train": [], "heldout": []}


def _matter(key: str, draw: Callable[[random.Random, Split], str]) -> Matter:
    phrases, further = table("recall"), table("recall")["further"].get(key, {})
    ways = [
        tuple(
            text.replace("{k}", key)
            for text in phrases[manner][split] + further.get(manner, _NOTHING_MORE)[split]
        )
        for manner in ("said", "asked")
        for split in ("train", "heldout")
    ]
    return Matter(key, draw, *ways)


MATTERS = {key: _matter(key, draw) for key, draw in _DRAWS.items()}


def said_and_asked(rng: random.Random, split: Split, matter: Matter) -> tuple[Exchange, Exchange]:
    """The exchange that tells a value and the one that asks for it later."""
    value = matter.draw(rng, split)
    said = _capital(rng, rng.choice(matter.said if split == "train" else matter.said_heldout)).format(v=value)
    asked = rng.choice(matter.asked if split == "train" else matter.asked_heldout)
    telling = Exchange(
        asked=user(said),
        reply=Reply(
            reasoning=f"The user tells me: {matter.key} {value}.",
            content=f"I will remember that your {matter.key} is {value}.",
        ),
        kind="telling",
        expect={"contains": [value]},
    )
    recalling = Exchange(
        asked=user(_capital(rng, asked)),
        reply=Reply(
            reasoning=f"The user told me: {matter.key} {value}.", content=f"Your {matter.key} is {value}."
        ),
        kind="recall",
        expect={"contains": [value]},
    )
    return telling, recalling


def recollection(rng: random.Random, split: Split) -> tuple[list[Exchange], list[Exchange]]:
    """One to three matters told, then one or two of them asked for, as two lists of exchanges (others may
    go between).
    """
    by_last_word = {key.split()[-1]: key for key in rng.sample(list(MATTERS), len(MATTERS))}
    keys = rng.sample(list(by_last_word.values()), rng.choice((1, 1, 2, 2, 3)))
    pairs = [said_and_asked(rng, split, MATTERS[key]) for key in keys]
    asked = rng.sample(pairs, 1 if split == "heldout" else rng.randint(1, len(pairs)))
    return [telling for telling, _ in pairs], [recalling for _, recalling in asked]


def _capital(rng: random.Random, text: str) -> str:
    return text[0].upper() + text[1:] if rng.random() < 0.8 else text
