"""Something said in an earlier turn, asked for later."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from tools.sapling.conversation import Exchange, Reply, user
from tools.sapling.words import Split, made_up_word, name, number, place, thing


@attrs.frozen
class Matter:
    """One thing a user may say about themselves: how it is said and asked for, `{v}` standing for the value."""

    key: str
    draw: Callable[[random.Random, Split], str]
    said: tuple[str, ...]
    said_heldout: tuple[str, ...]
    asked: tuple[str, ...]
    asked_heldout: tuple[str, ...]


def _number(rng: random.Random, split: Split) -> str:
    return str(number(rng))


def _colour(rng: random.Random, split: Split) -> str:
    return made_up_word(rng) if rng.random() < 0.3 else rng.choice("red blue green yellow black white pink brown grey orange".split())


def _asked(key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (
        (f"what is my {key}?", f"what's my {key}?", f"tell me my {key}.", f"do you remember my {key}?", f"which {key} did I give you?",
         f"I forgot my {key}. What is it?", f"say my {key}.", f"what did I say my {key} is?"),
        (f"can you tell me my {key}?", f"what was my {key}?", f"do you still know my {key}?"),
    )


def _said(key: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return (
        (f"my {key} is {{v}}.", f"my {key} is {{v}}", f"remember that my {key} is {{v}}.", f"please note: my {key} is {{v}}.",
         f"hello, my {key} is {{v}}.", f"by the way, my {key} is {{v}}.", f"{{v}} is my {key}."),
        (f"hi, my {key} is {{v}}.", f"please remember that my {key} is {{v}}.", f"just so you know, my {key} is {{v}}."),
    )


_DRAWS: dict[str, Callable[[random.Random, Split], str]] = {
    "name": name, "city": place, "number": _number, "lucky number": _number, "favourite number": _number, "room number": _number,
    "favourite colour": _colour, "pet": thing, "favourite animal": thing, "friend": name, "sister": name, "brother": name, "dog": name,
    "cat": name, "boss": name, "teacher": name, "code": _number, "age": _number, "home town": place, "favourite city": place,
    "password": lambda rng, split: made_up_word(rng), "favourite word": lambda rng, split: made_up_word(rng),
}
_EXTRA_SAID = {
    "name": (("I am {v}.", "I'm {v}.", "call me {v}.", "hi, I am {v}.", "hello! I'm {v}."), ("hey, I'm {v}.", "you can call me {v}.")),
    "city": (("I live in {v}.", "I am from {v}."), ("I come from {v}.",)),
}
_EXTRA_ASKED = {
    "name": (("who am I?", "what am I called?"), ()),
    "city": (("where do I live?", "where am I from?"), ()),
}
_NONE: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())


def _matter(key: str, draw: Callable[[random.Random, Split], str]) -> Matter:
    said, asked = _said(key), _asked(key)
    more_said, more_asked = _EXTRA_SAID.get(key, _NONE), _EXTRA_ASKED.get(key, _NONE)
    return Matter(key, draw, said[0] + more_said[0], said[1] + more_said[1], asked[0] + more_asked[0], asked[1] + more_asked[1])


MATTERS = {key: _matter(key, draw) for key, draw in _DRAWS.items()}


def said_and_asked(rng: random.Random, split: Split, matter: Matter) -> tuple[Exchange, Exchange]:
    """The exchange that tells a value and the one that asks for it later."""
    value = matter.draw(rng, split)
    said = _capital(rng, rng.choice(matter.said if split == "train" else matter.said_heldout)).format(v=value)
    asked = rng.choice(matter.asked if split == "train" else matter.asked_heldout)
    telling = Exchange(
        asked=user(said),
        reply=Reply(reasoning=f"The user tells me: {matter.key} {value}.", content=f"I will remember that your {matter.key} is {value}."),
        kind="telling",
        expect={"contains": [value]},
    )
    recalling = Exchange(
        asked=user(_capital(rng, asked)),
        reply=Reply(reasoning=f"The user told me: {matter.key} {value}.", content=f"Your {matter.key} is {value}."),
        kind="recall",
        expect={"contains": [value]},
    )
    return telling, recalling


def recollection(rng: random.Random, split: Split) -> tuple[list[Exchange], list[Exchange]]:
    """One to three matters told, then one or two of them asked for, as two lists of exchanges (others may go between)."""
    by_last_word = {key.split()[-1]: key for key in rng.sample(list(MATTERS), len(MATTERS))}
    keys = rng.sample(list(by_last_word.values()), rng.choice((1, 1, 2, 2, 3)))
    pairs = [said_and_asked(rng, split, MATTERS[key]) for key in keys]
    asked = rng.sample(pairs, 1 if split == "heldout" else rng.randint(1, len(pairs)))
    return [telling for telling, _ in pairs], [recalling for _, recalling in asked]


def _capital(rng: random.Random, text: str) -> str:
    return text[0].upper() + text[1:] if rng.random() < 0.8 else text
