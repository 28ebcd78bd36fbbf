"""Tools to choose from: written-out ones, and ones made up of random nouns so that choosing has to go by
the words alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs

from tools.sapling.tables import table
from tools.sapling.words import Split, made_up_word, name, number, place, thing


@attrs.frozen
class Parameter:
    """A parameter: its JSON name, what it holds (`place`, `name`, `number`, …) and whether a call must give
    it.
    """

    name: str
    holds: str
    required: bool = True

    @property
    def type(self) -> str:
        """The JSON type that the schema states."""
        return "integer" if self.holds == "number" else "string"


@attrs.frozen
class Tool:
    """A function, how its need is voiced (`{param}` in the text) and the keys of what it answers."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    asked: tuple[str, ...]
    topic: str
    results: tuple[str, ...] = ()


def _tool(entry: dict[str, Any]) -> Tool:
    parameters = tuple(_parameter(text) for text in entry["parameters"])
    asked, results = tuple(entry["asked"]), tuple(entry["results"])
    return Tool(entry["name"], entry["description"], parameters, asked, entry["topic"], results)


def _parameter(text: str) -> Parameter:
    parameter, _, holds = text.partition(":")
    return Parameter(parameter, holds.rstrip("?"), not holds.endswith("?"))


_TABLE = table("tools")
WRITTEN: dict[Split, tuple[Tool, ...]] = {
    "train": tuple(_tool(entry) for entry in _TABLE["train"]),
    "heldout": tuple(_tool(entry) for entry in _TABLE["heldout"]),
}
_RANDOM = _TABLE["random"]
NOUNS: list[str] = _RANDOM["nouns"].split()
_VERBS = _RANDOM["verbs"].split()
_HOLDERS = _RANDOM["holders"]
_UNITS = _TABLE["values"]["units"]
_TEXTS, _TEXTS_HELDOUT = _TABLE["values"]["texts"], _TABLE["values"]["texts_heldout"]
_SYMBOL_LETTERS = "ABCDEFGHKLMNPRSTXYZ"
_SYMBOLS: dict[str, list[str]] = {
    "language": ["French", "German", "Spanish", "Italian", "Polish", "Dutch", "Greek"],
    "currency": ["USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "PLN"],
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
}


def random_tool(rng: random.Random) -> Tool:
    """A tool about a random noun, mostly a made-up one, asked for in a random build of sentence."""
    noun, other = (_noun(rng) for _ in range(2))
    verb = made_up_word(rng) if rng.random() < 0.2 else rng.choice(_VERBS)
    kinds = rng.sample(list(_HOLDERS), 2)
    first = Parameter(_parameter_name(rng, kinds[0]), kinds[0])
    name_ = _function_name(rng, verb, noun, other)
    topic = f"{noun} {other}" if f"{noun}_{other}" in name_ and rng.random() < 0.5 else noun
    fields = {"t": topic, "T": _capital(rng, topic), "v": verb, "V": verb.capitalize(), "p": first.name}
    asked = _question(rng, first, fields)
    parameters: tuple[Parameter, ...] = (first,)
    second = Parameter(_parameter_name(rng, kinds[1]), kinds[1], rng.random() < 0.7)
    if rng.random() < 0.35 and second.name != first.name:
        parameters = (first, second)
        if second.required:
            asked = with_addition(asked, rng.choice(_RANDOM["second"][second.holds]).format(q=second.name))
    described = rng.choice(_RANDOM["described"]).format(**fields)
    results = tuple(dict.fromkeys((noun, *(_noun(rng) for _ in range(rng.randint(0, 2))))))
    return Tool(name_, described, parameters, (asked,), noun, results)


def _noun(rng: random.Random) -> str:
    return made_up_word(rng) if rng.random() < 0.6 else rng.choice(NOUNS)


def _capital(rng: random.Random, text: str) -> str:
    return text.capitalize() if rng.random() < 0.3 else text


def _question(rng: random.Random, parameter: Parameter, fields: dict[str, str]) -> str:
    """A question with the parameter's value in it, `{name}` standing for the value."""
    held = "{" + parameter.name + "}"
    if rng.random() < 0.1:
        return str(rng.choice(_RANDOM["value_first"]).format(x=held, **fields))
    head, joint = rng.choice(_RANDOM["heads"]), rng.choice(_RANDOM["joints"][parameter.holds])
    words = " ".join(part for part in (head.format(**fields), joint.format(**fields), held) if part)
    return f"{words}{rng.choice(_RANDOM['tails'])}"


def with_addition(question: str, addition: str) -> str:
    """The question with more words before its last sign."""
    bare = question.rstrip("?.!")
    return f"{bare} {addition}{question[len(bare) :]}"


def _parameter_name(rng: random.Random, holds: str) -> str:
    plain = rng.choice(_HOLDERS[holds])
    other = rng.choice(NOUNS)
    return rng.choices(
        (plain, made_up_word(rng), f"{other}_{plain}", f"{plain}_{other}", other), (5, 3, 2, 1, 1)
    )[0]


def _function_name(rng: random.Random, verb: str, noun: str, other: str) -> str:
    info = rng.choice(_RANDOM["info"])
    return rng.choices(
        (
            f"{verb}_{noun}",
            f"{noun}_{info}",
            noun,
            verb + noun.capitalize(),
            f"{verb}_{other}_{noun}",
            f"{verb}_{noun}_{other}",
            f"{noun}_{other}",
            f"{verb}_{other}",
        ),
        (10, 3, 2, 2, 2, 2, 2, 1),
    )[0]


def value(rng: random.Random, split: Split, holds: str) -> Any:
    """A random argument for a parameter."""
    if holds in _SYMBOLS:
        return rng.choice(_SYMBOLS[holds])
    return _VALUES[holds](rng, split)


def _text(rng: random.Random, split: Split) -> str:
    if split == "heldout":
        return str(rng.choice(_TEXTS_HELDOUT))
    if rng.random() < 0.5:
        return str(rng.choice(_TEXTS))
    return " ".join(
        made_up_word(rng) if rng.random() < 0.3 else thing(rng, "train") for _ in range(rng.randint(2, 4))
    )


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


def schema(rng: random.Random, tool: Tool) -> dict[str, Any]:
    """The tool as an OpenAI client sends it; details that clients leave out are left out at times."""
    properties: dict[str, Any] = {}
    detailed = rng.random() < 0.3
    for parameter in tool.parameters:
        properties[parameter.name] = {"type": parameter.type}
        if detailed:
            properties[parameter.name]["description"] = rng.choice(
                (f"The {parameter.name}", f"{parameter.name} to use", f"Which {parameter.name}")
            )
        if parameter.holds == "unit":
            properties[parameter.name]["enum"] = list(_UNITS[:2])
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.85:
        parameters["required"] = [parameter.name for parameter in tool.parameters if parameter.required]
    if rng.random() < 0.05:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if rng.random() < 0.05:
        del function["description"]
    return {"type": "function", "function": function}


def draw(rng: random.Random, split: Split, count: int) -> list[Tool]:
    """`count` tools with different names and topics."""
    chosen: dict[str, Tool] = {}
    while len(chosen) < count:
        tool = rng.choice(WRITTEN[split]) if split == "heldout" or rng.random() < 0.3 else random_tool(rng)
        if all(tool.topic != other.topic and tool.topic not in other.name for other in chosen.values()):
            chosen.setdefault(tool.name, tool)
    return list(chosen.values())
