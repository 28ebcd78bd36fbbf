"""Cases for a parser: a raw text and the message it must become, ways of cutting it, and how the two are compared."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from maple_plugins.compose import Chain
from maple_plugins.errors import ParserFailed
from maple_plugins.events import ModelFinish, ParserEvent
from maple_plugins.fold import Message, fold
from maple_plugins.parser import ParserContext, ReasoningParser, ToolParser, ToolSpec
from maple_plugins.parsers.none import NoReasoning, NoTools

SEED = 20
RANDOM_CUTS = 50


class ContractViolation(AssertionError):
    """A parser broke its contract; the message says in which case, and how."""


@attrs.frozen(kw_only=True)
class ParserCase:
    """A raw model output and the message it must become.

    ``calls`` are names with arguments as JSON values. ``content`` None means that the whole answer was calls.
    """

    name: str
    raw: str
    in_reasoning: bool = False
    finish: ModelFinish = "stop"
    tools: tuple[ToolSpec, ...] = ()
    reasoning: str | None = None
    content: str | None = ""
    calls: tuple[tuple[str, Mapping[str, object]], ...] = ()

    @classmethod
    def from_json(cls, line: str) -> ParserCase:
        """Read a line with name, raw, in_reasoning, model_finish, reasoning, content and tool_calls."""
        fields = json.loads(line)
        return cls(
            name=fields["name"],
            raw=fields["raw"],
            in_reasoning=fields["in_reasoning"],
            finish=fields["model_finish"],
            reasoning=fields["reasoning"],
            content=fields["content"],
            calls=tuple((call["name"], call["arguments"]) for call in fields["tool_calls"]),
        )

    @property
    def context(self) -> ParserContext:
        """What the parsers are told."""
        return ParserContext(in_reasoning=self.in_reasoning, tools=self.tools)


def single_splits(text: str) -> Iterator[list[str]]:
    """Every way of cutting the text in two."""
    return ([text[:at], text[at:]] for at in range(1, len(text)))


def random_cuts(text: str, count: int = RANDOM_CUTS, seed: int = SEED) -> Iterator[list[str]]:
    """``count`` seeded ways of cutting the text into pieces of 1 to 12 characters."""
    dice = random.Random(seed)  # noqa: S311 -- reproducible cuts, not secrets
    for _ in range(count):
        pieces, at = [], 0
        while at < len(text):
            size = dice.randint(1, 12)
            pieces.append(text[at : at + size])
            at += size
        yield pieces


class CaseChain(Chain):
    """The chain of a case: a parser that raises is a ContractViolation that names the case."""

    def __init__(self, case: ParserCase, reasoning: type[ReasoningParser], tools: type[ToolParser]) -> None:
        super().__init__(reasoning(case.context), tools(case.context))
        self._case = case

    def feed(self, text: str) -> tuple[ParserEvent, ...]:
        """As Chain's."""
        return self._named(super().feed, text)

    def close(self, finish: ModelFinish) -> tuple[ParserEvent, ...]:
        """As Chain's."""
        return self._named(super().close, finish)

    def _named(self, say: Callable[[Any], tuple[ParserEvent, ...]], given: str) -> tuple[ParserEvent, ...]:
        try:
            return say(given)
        except ParserFailed as error:
            raise ContractViolation(
                f"{self._case.name}: {error} on {given!r}: it raised {error.__cause__!r}"
            ) from error.__cause__


def replay(
    case: ParserCase,
    pieces: Iterable[str],
    *,
    reasoning: type[ReasoningParser] = NoReasoning,
    tools: type[ToolParser] = NoTools,
) -> Message:
    """The message that new parsers make of the pieces; the case tells how its text begins and ends."""
    chain = CaseChain(case, reasoning, tools)
    events = [event for piece in pieces for event in chain.feed(piece)]
    return fold([*events, *chain.close(case.finish)])


def require_expected(case: ParserCase, pieces: Sequence[str], message: Message) -> None:
    """Raise ContractViolation unless the message is the case's; arguments are compared as JSON values."""
    for call in message.calls:
        require(is_object(call.arguments), f"{case.name}: {call.arguments!r} is no JSON object")
    calls = tuple((call.name, json.loads(call.arguments)) for call in message.calls)
    got = (message.reasoning, message.content, calls)
    require_equal(case, pieces, got, (case.reasoning, case.content, case.calls))


def require_calls(case: ParserCase, message: Message) -> None:
    """Raise ContractViolation unless the message has the case's calls, and its content but for outer white space."""
    for call in message.calls:
        require(is_object(call.arguments), f"{case.name}: {call.arguments!r} is no JSON object")
    got = tuple((call.name, json.loads(call.arguments)) for call in message.calls)
    texts = ((message.content or "").strip(), (case.content or "").strip())
    require(
        got == case.calls and texts[0] == texts[1],
        f"{case.name}: {case.raw!r} gave {message}, expected {case}",
    )


def require(kept: bool, message: str) -> None:
    """Raise ContractViolation with the message unless it is kept."""
    if not kept:
        raise ContractViolation(message)


def require_equal(case: ParserCase, pieces: Sequence[str], got: object, expected: object) -> None:
    """Raise ContractViolation unless the two are equal; the message has case, pieces and both."""
    require(got == expected, f"{case.name}: {pieces!r} at {case.finish} gave {got}, expected {expected}")


def is_object(arguments: str) -> bool:
    """Whether this is the JSON text of an object."""
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False
