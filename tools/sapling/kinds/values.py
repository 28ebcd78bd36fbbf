"""What a call is given: a value for every kind of parameter, and how a question says it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from tools.sapling.kinds.toolbox import NOUNS, VERBS, Parameter
from tools.sapling.tables import table
from tools.sapling.words import Split, made_up_word, name, number, place, thing

_VALUES_TABLE = table("tools")["values"]
_TEXTS, _TEXTS_HELDOUT = _VALUES_TABLE["texts"], _VALUES_TABLE["texts_heldout"]
_PATTERNS = _VALUES_TABLE["text_patterns"]
_WIDE = table("clients")["wide"]
_SYMBOL_LETTERS = "ABCDEFGHKLMNPRSTXYZ"
_SYMBOLS: dict[str, list[str]] = {
    "language": ["French", "German", "Spanish", "Italian", "Polish", "Dutch", "Greek"],
    "currency": ["USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "PLN"],
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
}


def filled(
    rng: random.Random, split: Split, parameters: Iterable[Parameter], text: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that ``text`` gives, in the schema's order, and what stands in it for each ``{placeholder}``.

    A list is spoken of by its item's name, an object by its members'.
    """
    arguments: dict[str, Any] = {}
    spoken: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.holds == "object":
            inner, said = filled(rng, split, parameter.parts, text)
            arguments |= {parameter.name: inner} if inner else {}
            spoken |= said
        elif "{" + (key := _spoken_name(parameter)) + "}" in text:
            arguments[parameter.name] = _argument(rng, split, parameter)
            spoken[key] = _said(rng, arguments[parameter.name])
    return arguments, spoken


def _spoken_name(parameter: Parameter) -> str:
    return parameter.parts[0].name if parameter.holds == "list" else parameter.name


def _argument(rng: random.Random, split: Split, parameter: Parameter) -> Any:
    if parameter.choices:
        return rng.choice(parameter.choices)
    if parameter.holds == "list":
        items = [_argument(rng, split, parameter.parts[0]) for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))]
        return list(dict.fromkeys(items))
    if parameter.wide and parameter.holds in _WIDE and rng.random() < 0.5:
        return _several_words(rng, split, parameter.holds)
    return value(rng, split, parameter.holds)


def _several_words(rng: random.Random, split: Split, holds: str) -> str:
    """``San Francisco``, ``Ada Moreau``, ``red lamp``: a word from a list or a made-up one beside a value of one word."""
    word, other = str(value(rng, split, holds)), str(value(rng, split, holds))
    before = other if rng.random() < 0.4 else rng.choice(_WIDE[holds].split())
    return rng.choice((f"{before} {word}",) * 4 + (f"{before} {word} {other}",))


def _said(rng: random.Random, given: Any) -> Any:
    if not isinstance(given, list):
        return given
    *before, last = map(str, given)
    return ", ".join(before) + (rng.choice((" and ", " and ", ", and ", ", ")) if before else "") + last


def value(rng: random.Random, split: Split, holds: str) -> Any:
    """A random argument for a parameter."""
    if holds in _SYMBOLS:
        return rng.choice(_SYMBOLS[holds])
    return _VALUES[holds](rng, split)


def _text(rng: random.Random, split: Split) -> str:
    if split == "heldout":
        return str(rng.choice(_TEXTS_HELDOUT))
    style = rng.random()
    if style < 0.15:
        return str(rng.choice(_TEXTS))
    if style < 0.4:
        return " ".join(
            made_up_word(rng) if rng.random() < 0.3 else thing(rng, "train") for _ in range(rng.randint(2, 4))
        )
    return str(rng.choice(_PATTERNS)).format(
        a=_word(rng), b=_word(rng), v=rng.choice(VERBS), n=name(rng, "train"), p=place(rng, "train")
    )


def _word(rng: random.Random) -> str:
    return made_up_word(rng) if rng.random() < 0.4 else rng.choice((thing(rng, "train"), rng.choice(NOUNS)))


def _code(rng: random.Random, split: Split) -> str:
    return "".join(rng.choice(_SYMBOL_LETTERS) for _ in range(rng.randint(2, 4))) + str(
        rng.randrange(10, 1000)
    )


def _path(rng: random.Random, split: Split) -> str:
    return f"{thing(rng, split)}.{rng.choice(('txt', 'csv', 'pdf', 'md'))}"


_VALUES: dict[str, Callable[[random.Random, Split], Any]] = {
    "place": place,
    "name": name,
    "thing": thing,
    "number": lambda rng, _: number(rng),
    "text": _text,
    "code": _code,
    "path": _path,
}
