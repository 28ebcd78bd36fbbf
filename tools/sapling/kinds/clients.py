"""Tools as real clients have them: values of several words, enums, lists, nested objects, options that nobody mentions, and
no parameters at all.
"""

from __future__ import annotations

import random
import re

import attrs

from tools.sapling.kinds.toolbox import Parameter, Tool, with_addition
from tools.sapling.tables import table

_TABLE = table("clients")
_BARE, _ENUMS, _SAID = _TABLE["bare"], _TABLE["enums"], _TABLE["said"]
_AROUND, _AROUND_EXTRAS = (_TABLE["objects"][key].split() for key in ("around", "extras"))
_EXTRAS = {kind: names.split() for kind, names in _TABLE["extras"].items()}
_LISTED = ("place", "name", "thing", "code")


def enriched(rng: random.Random, tool: Tool) -> Tool:
    """The tool with what real clients' schemas have beside plain words and numbers; its name and topic stay."""
    style = rng.random()
    if style < 0.12:
        return _bare(rng, tool)
    tool = attrs.evolve(tool, parameters=tuple(_widened(parameter) for parameter in tool.parameters))
    first = tool.parameters[0]
    if style < 0.3 and first.holds in _LISTED:
        tool = _listed(tool)
    elif style < 0.48:
        tool = _around(tool, rng.choice(_AROUND), rng.choice((1, len(tool.parameters))))
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        tool = _with_extra(rng, tool)
    return tool


def _bare(rng: random.Random, tool: Tool) -> Tool:
    verb = rng.choice(("show", "list", "get", "read", "check"))
    fields = {"t": tool.topic, "T": tool.topic.capitalize(), "v": verb, "V": verb.capitalize()}
    asked = tuple(text.format(**fields) for text in rng.sample(_BARE["asked"], 3))
    described = rng.choice(_BARE["described"]).format(**fields)
    return attrs.evolve(tool, description=described, parameters=(), asked=asked)


def _widened(parameter: Parameter) -> Parameter:
    """Values of several words; a unit is an enum as any other here."""
    if parameter.holds == "unit":
        return attrs.evolve(parameter, holds="enum", choices=("celsius", "fahrenheit"))
    return attrs.evolve(parameter, wide=True)


def _listed(tool: Tool) -> Tool:
    """The first parameter takes several values; the questions speak of it by its old name."""
    first, *rest = tool.parameters
    return attrs.evolve(tool, parameters=(_list_of(first), *rest))


def _list_of(item: Parameter) -> Parameter:
    plural = re.sub("(?<=[^aeo])y$", "ie", item.name) + "s"
    return Parameter(plural, "list", item.required, parts=(item,))


def _around(tool: Tool, name: str, count: int) -> Tool:
    """The first ``count`` parameters as members of one object, unless the name is taken."""
    if name in _names(tool.parameters):
        return tool
    inner, rest = tool.parameters[:count], tool.parameters[count:]
    needed = any(parameter.required for parameter in inner)
    return attrs.evolve(tool, parameters=(Parameter(name, "object", needed, parts=inner), *rest))


def _names(parameters: tuple[Parameter, ...]) -> set[str]:
    """Every name in a schema, nested ones too."""
    inner = [_names(parameter.parts) for parameter in parameters]
    return {parameter.name for parameter in parameters}.union(*inner)


def _with_extra(rng: random.Random, tool: Tool) -> Tool:
    """One more parameter: asked for always, at times or never. None where its name is taken."""
    extra = _extra(rng)
    said = extra.parts[0] if extra.holds == "list" else extra
    if _names((extra,)) & _names(tool.parameters):
        return tool
    asked: tuple[str, ...] = ()
    if extra.holds in _SAID and not _has_text(tool.parameters):
        build = rng.choice(_SAID[extra.holds]).format(q=said.name, p=extra.name)
        asked = tuple(with_addition(text, build) for text in tool.asked)
    extra = attrs.evolve(extra, required=bool(asked) and rng.random() < 0.5)
    member = _inside(rng, extra, tool)
    return attrs.evolve(
        tool,
        parameters=(*tool.parameters, member),
        asked=asked if extra.required else tool.asked + asked,
    )


def _extra(rng: random.Random) -> Parameter:
    kind = rng.choice(("enum", "enum", "enum", "number", "flag", "list", "text", "place", "name", "code"))
    if kind == "enum":
        entry = rng.choice(_ENUMS)
        choices = rng.sample(entry["choices"], rng.randint(2, min(4, len(entry["choices"]))))
        return Parameter(rng.choice(entry["names"].split()), "enum", choices=tuple(choices))
    if kind == "list":
        item = Parameter(rng.choice(_EXTRAS["list"]), rng.choice(("thing", "name")), wide=True)
        return _list_of(item)
    names = _EXTRAS.get(kind) or [f"{prefix}_{kind}" for prefix in ("other", "start", "second", "home")]
    return Parameter(rng.choice(names), kind, wide=True)


def _inside(rng: random.Random, extra: Parameter, tool: Tool) -> Parameter:
    """At times in an object of its own."""
    name = rng.choice(_AROUND_EXTRAS)
    if rng.random() < 0.8 or name in _names(tool.parameters):
        return extra
    return Parameter(name, "object", extra.required, parts=(extra,))


def _has_text(parameters: tuple[Parameter, ...]) -> bool:
    """Whether a question has free words, in which an addition would be lost."""
    return any(parameter.holds in ("text", "path") or _has_text(parameter.parts) for parameter in parameters)
