"""Tools to choose from: written-out ones, and ones made up of random nouns so that choosing has to go by
the words alone.
"""

from __future__ import annotations

import random
import re
from typing import Any

import attrs

from tools.sapling.tables import table
from tools.sapling.words import Split, made_up_word

_TYPES = {"number": "integer", "flag": "boolean", "list": "array", "object": "object"}


@attrs.frozen
class Parameter:
    """A parameter: its JSON name, what it holds (``place``, ``name``, ``number``, …) and whether a call must give it.

    ``choices`` are an enum's values; ``parts`` an object's members, or the one item of a list. A ``wide`` value may have several words.
    """

    name: str
    holds: str
    required: bool = True
    choices: tuple[str, ...] = ()
    parts: tuple[Parameter, ...] = ()
    wide: bool = False

    @property
    def type(self) -> str:
        """The JSON type that the schema states."""
        return _TYPES.get(self.holds, "string")


@attrs.frozen
class Tool:
    """A function, how its need is voiced (``{param}`` in the text) and the keys of what it answers."""

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
_DEEDS = _RANDOM["deeds"]
NOUNS: list[str] = _RANDOM["nouns"].split()
VERBS: list[str] = _RANDOM["verbs"].split()
_DEED_VERBS = [verb for verb in VERBS if verb not in {tool.topic for tool in WRITTEN["heldout"]}]
_HOLDERS = _RANDOM["holders"]
_SUFFIXES = ("id", "number", "name", "code", "key", "of", "no")


def deed(rng: random.Random) -> Tool:
    """A tool asked for by its verb, with a value right behind it and often a text."""
    verb = made_up_word(rng) if rng.random() < 0.5 else rng.choice(_DEED_VERBS)
    noun, kind = _noun(rng), rng.choice(("name", "name", "place", "thing", "number", "code"))
    first = Parameter(_named_after(rng, noun, _parameter_name(rng, kind)), kind)
    second = Parameter(_parameter_name(rng, "text"), "text")
    told = first.name != second.name and rng.random() < 0.7
    fields = {
        "v": verb,
        "V": verb.capitalize(),
        "t": noun,
        "x": "{" + first.name + "}",
        "s": "{" + second.name + "}",
    }
    asked = rng.choice(_DEEDS["told" if told else "done"]).format(**fields)
    return Tool(
        rng.choice((f"{verb}_{noun}", f"{verb}_{noun}", verb, verb + noun.capitalize())),
        rng.choice(_DEEDS["described"]).format(**fields),
        (first, second) if told else (first,),
        (asked,),
        verb,
        ("status",),
    )


def random_tool(rng: random.Random) -> Tool:
    """A tool about a random noun, mostly a made-up one, asked for in a random build of sentence."""
    noun, other = (_noun(rng) for _ in range(2))
    verb = made_up_word(rng) if rng.random() < 0.2 else rng.choice(VERBS)
    kinds = rng.sample([kind for kind in _HOLDERS if kind != "text"], 2)
    first = Parameter(_named_after(rng, noun, _parameter_name(rng, kinds[0])), kinds[0])
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
    """A question with the parameter's value in it, ``{name}`` standing for the value."""
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


def _named_after(rng: random.Random, noun: str, parameter: str) -> str:
    """At times the tool's own noun is a part of it, so that a name's end must be told from such a parameter's middle."""
    return f"{noun}_{rng.choice(_SUFFIXES)}" if rng.random() < 0.25 else parameter


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


def varied(rng: random.Random, tool: Tool) -> Tool:
    """A written tool, at times about another noun and with other parameter names: what is asked for and what the
    sentences are like are then learnt apart.
    """
    if rng.random() < 0.6:
        tool = _about(tool, _fresh_noun(rng, tool))
    return _renamed(rng, tool) if rng.random() < 0.5 else tool


def _fresh_noun(rng: random.Random, tool: Tool) -> str:
    taken = {part.lower() for part in re.findall("[A-Za-z][a-z]*", " ".join((tool.name, *tool.asked)))}
    while (noun := _noun(rng)) in taken:
        pass
    return noun


def _about(tool: Tool, noun: str) -> Tool:
    word = re.compile(rf"(?<![\w{{]){re.escape(tool.topic)}(?![\w}}])", re.IGNORECASE)
    part = re.compile(re.escape(tool.topic), re.IGNORECASE)

    def other(found: re.Match[str]) -> str:
        return noun.capitalize() if found.group()[0].isupper() else noun

    return attrs.evolve(
        tool,
        name=part.sub(other, tool.name),
        description=word.sub(other, tool.description),
        asked=tuple(word.sub(other, text) for text in tool.asked),
        topic=noun,
        results=tuple(noun if key == tool.topic else key for key in tool.results),
    )


def _renamed(rng: random.Random, tool: Tool) -> Tool:
    """Other parameter names; a name that must tell two strings apart becomes another that tells what it holds."""
    parameters = {parameter.name: parameter for parameter in tool.parameters}
    types = [parameter.type for parameter in tool.parameters]
    kinds = [parameter.holds for parameter in tool.parameters]
    names: dict[str, str] = {}
    for old, parameter in parameters.items():
        new = old
        if types.count(parameter.type) == 1:
            plain = (
                _parameter_name(rng, parameter.holds) if parameter.holds in _HOLDERS else made_up_word(rng)
            )
            new = _named_after(rng, tool.topic, plain)
        elif kinds.count(parameter.holds) == 1 and parameter.holds in _HOLDERS:
            new = rng.choice(_HOLDERS[parameter.holds]) if rng.random() < 0.7 else made_up_word(rng)
        names[old] = old if new in names.values() or new in parameters or rng.random() < 0.3 else new
    return attrs.evolve(
        tool,
        parameters=tuple(attrs.evolve(parameter, name=names[old]) for old, parameter in parameters.items()),
        asked=tuple(_with_placeholders(text, names) for text in tool.asked),
    )


def _with_placeholders(text: str, names: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda found: "{" + names[found.group(1)] + "}", text)


def draw(rng: random.Random, split: Split, count: int) -> list[Tool]:
    """``count`` tools with different names and topics."""
    chosen: dict[str, Tool] = {}
    while len(chosen) < count:
        tool = _drawn(rng, split)
        if all(tool.topic != other.topic and tool.topic not in other.name for other in chosen.values()):
            chosen.setdefault(tool.name, tool)
    return list(chosen.values())


def _drawn(rng: random.Random, split: Split) -> Tool:
    if split == "heldout":
        return rng.choice(WRITTEN[split])
    return rng.choices((_a_written_one, random_tool, deed), (70, 20, 10))[0](rng)


def _a_written_one(rng: random.Random) -> Tool:
    return varied(rng, rng.choice(WRITTEN["train"]))
