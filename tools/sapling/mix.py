"""Draws whole training conversations: which kinds, how many turns, which system prompt, what is learnt."""

from __future__ import annotations

import random
from collections.abc import Callable

from tools.sapling.conversation import Conversation, Exchange
from tools.sapling.kinds import arithmetic, clients, facts, lists, recall, schemas, talk, tool_use, toolbox
from tools.sapling.words import Split, name

Kind = Callable[[random.Random, Split], Exchange]

PLAIN: dict[str, Kind] = {
    "sum": lambda rng, split: arithmetic.exchange(rng, split, "+"),
    "difference": lambda rng, split: arithmetic.exchange(rng, split, "-"),
    "product": lambda rng, split: arithmetic.exchange(rng, split, "*"),
    "fact": facts.exchange,
    "talk": talk.small_talk,
    "outside": talk.outside,
    "repeat": lists.repeat,
    "upper": lists.upper,
    "count": lists.count,
    "sort": lists.sort,
}
_CLIENTS_TOOLS = (1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 10)
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are Sapling.",
    "Be brief.",
    "Answer in one sentence.",
    "You are a friendly assistant.",
    "Use the tools when they help.",
    "You are Sapling, a demo model.",
    "Today is Monday.",
    "You are a helpful assistant. Answer briefly.",
    "Be polite and helpful.",
    "You help the user.",
)


def system_prompt(rng: random.Random) -> str | None:
    """No system prompt in six of ten conversations."""
    if rng.random() < 0.6:
        return None
    return f"You help {name(rng, 'train')}." if rng.random() < 0.15 else rng.choice(_SYSTEMS)


def conversation(rng: random.Random, weights: dict[str, float]) -> Conversation:
    """One training conversation; ``weights`` are relative frequencies of the plain kinds, ``recall``, ``tools``, ``clients`` (tools
    as real clients describe them) and ``which``.
    """
    kind = rng.choices(list(weights), list(weights.values()))[0]
    if kind == "recall":
        return _recall(rng, weights)
    if kind == "tools":
        return _tools(rng, weights)
    if kind == "clients":
        return _clients(rng, weights)
    if kind == "which":
        return _which(rng)
    count = rng.choice((1, 1, 1, 2, 3))
    exchanges = [PLAIN[kind](rng, "train"), *(_plain(rng, weights) for _ in range(count - 1))]
    rng.shuffle(exchanges)
    return _finish(rng, exchanges, ())


def _plain(rng: random.Random, weights: dict[str, float]) -> Exchange:
    kinds = [kind for kind in weights if kind in PLAIN]
    return PLAIN[rng.choices(kinds, [weights[kind] for kind in kinds])[0]](rng, "train")


def _recall(rng: random.Random, weights: dict[str, float]) -> Conversation:
    told, asked = recall.recollection(rng, "train")
    between = [_plain(rng, weights) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))]
    first = told + between[:1]
    rng.shuffle(first)
    rest = between[1:]
    return _finish(rng, first + rest + asked, ())


def _tools(rng: random.Random, weights: dict[str, float]) -> Conversation:
    tools = toolbox.draw(rng, "train", rng.choice((1, 1, 2, 2, 2, 3, 3, 4)))
    exchanges = _with_tools(rng, weights, tools)
    return _finish(rng, exchanges, tuple(schemas.schema(rng, tool, varied=True) for tool in tools))


def _clients(rng: random.Random, weights: dict[str, float]) -> Conversation:
    tools = [clients.enriched(rng, tool) for tool in toolbox.draw(rng, "train", rng.choice(_CLIENTS_TOOLS))]
    return _finish(rng, _with_tools(rng, weights, tools), schemas.of_client(rng, tools))


def _with_tools(rng: random.Random, weights: dict[str, float], tools: list[toolbox.Tool]) -> list[Exchange]:
    """Up to four exchanges beside the tools: most of them calls, some with their results, some that no tool fits."""
    exchanges: list[Exchange] = []
    for _ in range(rng.choice((1, 2, 3, 3, 4))):
        style = rng.random()
        if style < 0.62:
            exchange = tool_use.calling(rng, "train", tools)
            exchanges.append(exchange)
            if rng.random() < 0.5:
                exchanges.append(tool_use.answered(rng, "train", exchange, tools))
                continue
            break
        if style < 0.82:
            exchanges.append(tool_use.no_tool_fits(rng, "train", tools))
        else:
            exchanges.append(talk.small_talk(rng, "train") if style < 0.88 else _plain(rng, weights))
    return exchanges


def _which(rng: random.Random) -> Conversation:
    tools = toolbox.draw(rng, "train", rng.choice((2, 3, 3, 4, 5)))
    exchanges = [tool_use.which(rng, tools) for _ in range(rng.randint(4, 8))]
    return Conversation(
        exchanges=tuple(exchanges),
        system=system_prompt(rng),
        tools=tuple(schemas.schema(rng, tool, varied=True) for tool in tools),
    )


def _finish(
    rng: random.Random, exchanges: list[Exchange], tools: tuple[dict[str, object], ...]
) -> Conversation:
    last = len(exchanges) - 1
    learnt_from = 0 if last == 0 or rng.random() < 0.78 else rng.randint(1, last)
    return Conversation(
        exchanges=tuple(exchanges),
        system=system_prompt(rng),
        tools=tools,
        learnt_from=learnt_from,
        thinking=rng.random() >= 0.26,
    )
