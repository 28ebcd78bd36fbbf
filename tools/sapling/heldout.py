"""The held-out sets, one a kind: the offline and the HTTP evaluation ask exactly these."""

from __future__ import annotations

import random
import zlib

from tools.sapling.conversation import Conversation, Exchange
from tools.sapling.kinds import recall, schemas, tool_use, toolbox
from tools.sapling.mix import PLAIN, system_prompt

TOOL_KINDS = ("tool_call", "two_calls", "no_tool", "tool_result")
KINDS = (*PLAIN, "recall", *TOOL_KINDS)
TARGETS = {
    "sum": 95,
    "difference": 95,
    "product": 85,
    "fact": 95,
    "recall": 90,
    "tool_call": 90,
    "two_calls": 90,
    "no_tool": 90,
    "tool_result": 90,
}  # fmt: skip


def heldout(kind: str, count: int, *, thinking: bool = True) -> list[Conversation]:
    """``count`` conversations of one kind that no training data holds, the same on every call."""
    rng = random.Random(zlib.crc32(f"heldout {kind}".encode()))
    return [_conversation(rng, kind, thinking) for _ in range(count)]


def _conversation(rng: random.Random, kind: str, thinking: bool) -> Conversation:
    if kind in PLAIN:
        return _finish(rng, [PLAIN[kind](rng, "heldout")], [], thinking)
    if kind == "recall":
        return _finish(rng, _recall(rng), [], thinking)
    tools = toolbox.draw(rng, "heldout", rng.choice((2, 2, 3, 4) if kind == "two_calls" else (1, 2, 3, 4)))
    return _finish(rng, _tool_exchanges(rng, kind, tools), tools, thinking)


def _recall(rng: random.Random) -> list[Exchange]:
    told, asked = recall.recollection(rng, "heldout")
    between = [
        PLAIN[rng.choice(("sum", "fact", "talk", "repeat"))](rng, "heldout")
        for _ in range(rng.choice((0, 0, 1, 2)))
    ]
    return told + between + asked


def _tool_exchanges(rng: random.Random, kind: str, tools: list[toolbox.Tool]) -> list[Exchange]:
    if kind == "no_tool":
        return [tool_use.no_tool_fits(rng, "heldout", tools)]
    if kind == "two_calls":
        return [tool_use.twice(rng, "heldout", tools)]
    call = tool_use.called(rng, "heldout", [tool_use.request(rng, "heldout", rng.choice(tools))])
    return [call] if kind == "tool_call" else [call, tool_use.answered(rng, "heldout", call, tools)]


def _finish(
    rng: random.Random, exchanges: list[Exchange], tools: list[toolbox.Tool], thinking: bool
) -> Conversation:
    return Conversation(
        exchanges=tuple(exchanges),
        system=system_prompt(rng),
        tools=tuple(schemas.schema(rng, tool) for tool in tools),
        learnt_from=len(exchanges) - 1,
        thinking=thinking,
    )
