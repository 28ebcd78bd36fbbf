"""Calling tools: which one, with what, twice, not at all; and answering from what a tool says."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import attrs

from tools.sapling.conversation import Call, Exchange, Reply, user
from tools.sapling.kinds import toolbox
from tools.sapling.kinds.openings import opening
from tools.sapling.kinds.talk import REFUSAL, outside_question
from tools.sapling.kinds.toolbox import Tool
from tools.sapling.kinds.values import filled, value
from tools.sapling.tables import table
from tools.sapling.words import Split, made_up_word

_OPENINGS: dict[Split, tuple[str, ...]] = {
    "train": ("",) * 8
    + ("Please: ", "Hi! ", "Hello, ", "Hey, ", "Quick question: ", "Next question: ", "My question: ")
    + ("Good evening! ", "Good day! ", "Task: ", "Request: ", "Now: ", "Well, ", "Ok. ", "So: ", "Thanks! "),
    "heldout": ("", "", "", "Good morning! ", "Question: "),
}
_FUNCTION_WORDS = frozenset(table("tokens")["spaced"].split())
_CONDITIONS = [
    "sunny",
    "cloudy",
    "rainy",
    "windy",
    "cold",
    "warm",
    "clear",
    "open",
    "closed",
    "done",
    "ready",
    "late",
    "full",
    "empty",
    "low",
    "high",
    "good",
    "bad",
    "fast",
    "slow",
]


@attrs.frozen
class Request:
    """One need voiced in words and the call that meets it; ``topic`` is written as it stands in ``text``."""

    text: str
    topic: str
    call: Call
    tool: Tool


def request(rng: random.Random, split: Split, tool: Tool) -> Request:
    """A question that ``tool`` answers, with fresh arguments in the schema's order."""
    text = rng.choice(tool.asked)
    arguments, spoken = filled(rng, split, tool.parameters, text)
    optional = [
        parameter for parameter in tool.parameters if parameter.holds == "unit" and not parameter.required
    ]
    text = text.format(**spoken)
    if optional and rng.random() < 0.3:
        arguments[optional[0].name] = rng.choice(("celsius", "fahrenheit"))
        text = toolbox.with_addition(text, f"in {arguments[optional[0].name]}")
    return Request(text, _as_said(tool.topic, text), Call(tool.name, arguments), tool)


def _as_said(topic: str, text: str) -> str:
    """The topic with the capital that it has in the text: copying a word is easier than spelling it anew."""
    if re.search(rf"(?<![A-Za-z]){re.escape(topic)}", text):
        return topic
    capital = topic[0].upper() + topic[1:]
    return capital if re.search(rf"(?<![A-Za-z]){re.escape(capital)}", text) else topic


def _thought(item: Request) -> str:
    """Two lines: what is asked for, then the function found by way of that word, and its arguments as the call has them."""
    return f"The user asks for {item.topic}\n{item.call.name} {json.dumps(item.call.arguments, ensure_ascii=False)}"


def _reply(requests: list[Request]) -> Reply:
    return Reply(
        reasoning="\n".join(_thought(item) for item in requests), calls=tuple(item.call for item in requests)
    )


def _expected(requests: list[Request]) -> dict[str, Any]:
    return {"calls": [{"name": item.call.name, "arguments": item.call.arguments} for item in requests]}


def called(rng: random.Random, split: Split, requests: list[Request]) -> Exchange:
    """The exchange in which one or two requests become calls."""
    text = requests[0].text
    if len(requests) == 2:
        text, requests = _joined(rng, *requests)
    return Exchange(
        asked=user(opening(rng, split, _OPENINGS) + text),
        reply=_reply(requests),
        kind="tool_call" if len(requests) == 1 else "two_calls",
        expect=_expected(requests),
    )


def _joined(rng: random.Random, before: Request, after: Request) -> tuple[str, list[Request]]:
    """Both texts in one, and both requests; the second loses its capital, unless it begins with an argument."""
    first, second = before.text, after.text
    bare = first.rstrip("?.")
    keep = any(second.startswith(str(given)) for given in after.call.arguments.values())
    lowered = second if keep or rng.random() < 0.3 else second[0].lower() + second[1:]
    text = rng.choice(
        (
            f"{bare}, and {lowered}",
            f"{bare} and {lowered}",
            f"{first} And {lowered}",
            f"{first} {second}",
            f"{bare}, then {lowered}",
            f"{first} Also {lowered}",
        )
    )
    voiced = second if text.endswith(second) else lowered
    return text, [before, attrs.evolve(after, topic=_as_said(after.tool.topic, voiced))]


def _same_tool_twice(rng: random.Random, split: Split, tool: Tool) -> Exchange:
    first = request(rng, split, tool)
    key = next(iter(first.call.arguments))
    other = value(rng, split, next(p.holds for p in tool.parameters if p.name == key))
    second = attrs.evolve(first, call=Call(tool.name, {**first.call.arguments, key: other}))
    both = f"{first.call.arguments[key]} and {rng.choice(('', '', 'in '))}{other}"
    text = first.text.replace(str(first.call.arguments[key]), both, 1)
    exchange = called(rng, split, [attrs.evolve(first, text=text)])
    requests = [first, second]
    return attrs.evolve(exchange, reply=_reply(requests), kind="two_calls", expect=_expected(requests))


def calling(rng: random.Random, split: Split, tools: list[Tool]) -> Exchange:
    """One call most of the time, otherwise two: to two tools, or to one tool with two values."""
    style = rng.random()
    if style < 0.6:
        return called(rng, split, [request(rng, split, rng.choice(tools))])
    return twice(rng, split, tools)


def twice(rng: random.Random, split: Split, tools: list[Tool]) -> Exchange:
    """Two calls in one reply."""
    single = [
        tool for tool in tools if len(tool.parameters) == 1 and tool.parameters[0].holds in ("place", "name")
    ]
    if single and (len(tools) < 2 or rng.random() < 0.4):
        return _same_tool_twice(rng, split, rng.choice(single))
    if len(tools) < 2:
        return called(rng, split, [request(rng, split, tools[0])])
    return called(rng, split, [request(rng, split, tool) for tool in rng.sample(tools, 2)])


_WHICH = table("tools")["which"]


def which(rng: random.Random, tools: list[Tool]) -> Exchange:
    """A question about the tools themselves: which one is for a thing. A drill of the choice alone."""
    fits = rng.random() < 0.85
    tool = rng.choice(tools) if fits else toolbox.draw(rng, "train", 1)[0]
    if not fits and any(_mentions(tool.topic, other) for other in tools):
        return which(rng, tools)
    choice, answer = (tool.name, tool.name) if fits else ("No tool fits", "None of my tools.")
    topic = tool.topic.capitalize() if rng.random() < 0.4 else tool.topic
    return Exchange(
        asked=user(str(rng.choice(_WHICH)).format(t=topic)),
        reply=Reply(reasoning=f"The user asks for {topic}\n{choice}", content=answer),
        kind="which",
    )


def no_tool_fits(rng: random.Random, split: Split, tools: list[Tool]) -> Exchange:
    """A question that none of the tools answers and that the sapling cannot answer itself."""
    while True:
        if rng.random() < 0.5:
            asked = request(rng, split, toolbox.draw(rng, split, 1)[0])
            text, topic = asked.text, asked.topic
        else:
            text = outside_question(rng, split)
            topic = _content_word(text)
        if not any(_mentions(text.lower(), tool) for tool in tools):
            break
    return Exchange(
        asked=user(opening(rng, split, _OPENINGS) + text),
        reply=Reply(reasoning=f"The user asks for {topic}\nNo tool fits", content=REFUSAL),
        kind="no_tool",
        expect={"contains": ["small demo model"], "no_calls": True},
    )


def _mentions(lowered: str, tool: Tool) -> bool:
    parts = [part for part in tool.name.lower().split("_") if len(part) > 3]
    return tool.topic in lowered or any(part in lowered for part in parts)


def _content_word(text: str) -> str:
    """The first word that is no function word: what the question is about, roughly."""
    words: list[str] = re.findall("[A-Za-z]+", text)
    return next(
        (word for word in words if word.islower() and len(word) > 2 and word not in _FUNCTION_WORDS),
        words[-1],
    )


def _result_value(rng: random.Random, split: Split, key: str) -> Any:
    if "temperature" in key or key in ("price", "population", "distance", "level", "total", "rate"):
        return rng.randrange(1, 200)
    style = rng.random()
    if style < 0.35:
        return rng.choice(_CONDITIONS)
    if style < 0.55:
        return rng.randrange(1, 2000)
    if style < 0.65:
        return f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
    if style < 0.8:
        return value(rng, split, rng.choice(("name", "place")))
    if style < 0.95:
        return " ".join(rng.choice((rng.choice(_CONDITIONS), value(rng, split, "thing"))) for _ in range(2))
    return made_up_word(rng)


def _result(rng: random.Random, split: Split, call: Call, tool: Tool) -> tuple[str, str, list[str]]:
    """What the tool says, the sentence that passes it on, and the values that the sentence must hold."""
    keys = list(tool.results or ("result",))
    if split == "train" and rng.random() < 0.4:
        keys = [made_up_word(rng) for _ in range(rng.randint(1, 3))]
    values = {key: _result_value(rng, split, key) for key in keys}
    if rng.random() < 0.25:
        text = ", ".join(str(item) for item in values.values())
        return text, f"The tool says: {text}.", [text]
    told = ", ".join(f"the {key} is {item}" for key, item in values.items())
    plain = [item for item in call.arguments.items() if isinstance(item[1], str | int)]
    if rng.random() < 0.3 and plain:
        first = plain[0]
        values = {first[0]: first[1], **{key: item for key, item in values.items() if key != first[0]}}
        told = ", ".join(f"the {key} is {item}" for key, item in values.items())
    return (
        json.dumps(values, ensure_ascii=False),
        told[0].upper() + told[1:] + ".",
        [str(item) for item in values.values()],
    )


def answered(rng: random.Random, split: Split, exchange: Exchange, tools: list[Tool]) -> Exchange:
    """The exchange after a call: the tools' results come in, the reply passes them on in order."""
    by_name = {tool.name: tool for tool in tools}
    parts = [_result(rng, split, call, by_name[call.name]) for call in exchange.reply.calls]
    asked = tuple(
        {"role": "tool", "tool_call_id": f"call_{position}", "content": text}
        for position, (text, _, _) in enumerate(parts)
    )
    return Exchange(
        asked=asked,
        reply=Reply(
            reasoning="The tool answered, so I pass it on.",
            content=" ".join(sentence for _, sentence, _ in parts),
        ),
        kind="tool_result",
        expect={"contains": [wanted for _, _, values in parts for wanted in values], "no_calls": True},
    )
