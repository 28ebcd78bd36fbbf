"""Tests for a parser: derive from ``ParserContract``, name the parser and its cases, and run pytest.

A case says what message a raw model output must become. From each one the contract follows for every way of
cutting the text, for a cut-off at every position, and for what may be sent when.

The module needs no test framework; pytest finds the ``test_`` methods of a class whose name starts with
``Test``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import attrs

from maple_plugins.compose import Chain
from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ReasoningDelta, ToolCall
from maple_plugins.fold import Message, fold
from maple_plugins.parser import ParserContext, ReasoningParser, ToolParser, ToolSpec
from maple_plugins.parsers.none import NoReasoning, NoTools

SEED = 20
RANDOM_CUTS = 50
CUT_OFF_POSITIONS = 200
_FINISHES: tuple[ModelFinish, ...] = ("stop", "length")
_FILLERS = "#~^`@$%&"


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


def replay(
    case: ParserCase,
    pieces: Iterable[str],
    *,
    reasoning: type[ReasoningParser] = NoReasoning,
    tools: type[ToolParser] = NoTools,
) -> Message:
    """The message that new parsers make of the pieces; the case tells how its text begins and ends."""
    chain = Chain(reasoning(case.context), tools(case.context))
    events = [event for piece in pieces for event in chain.feed(piece)]
    return fold([*events, *chain.close(case.finish)])


def require_expected(case: ParserCase, pieces: Sequence[str], message: Message) -> None:
    """Raise ContractViolation unless the message is the case's; arguments are compared as JSON values."""
    calls = tuple((call.name, json.loads(call.arguments)) for call in message.calls)
    got = (message.reasoning, message.content, calls)
    _require_equal(case, pieces, got, (case.reasoning, case.content, case.calls))


class ParserContract:
    """What every parser must keep; a subclass sets the parsers and the cases.

    ``malformed`` are raw answers that must come out as they went in, at ``stop`` and at ``length``; unless
    set, each marker of the tool parser followed by a letter that means nothing.
    """

    reasoning: ClassVar[type[ReasoningParser]] = NoReasoning
    tools: ClassVar[type[ToolParser]] = NoTools
    cases: ClassVar[Sequence[ParserCase]] = ()
    malformed: ClassVar[Sequence[str] | None] = None

    def test_there_are_cases(self) -> None:
        """A contract without cases would hold for any parser."""
        _require(len(self.cases) > 0, f"{type(self).__name__}.cases is empty")

    def test_whole_text(self) -> None:
        """Each case fed at once gives its message."""
        for case in self.cases:
            self._check(case, [case.raw])

    def test_every_single_split(self) -> None:
        """Each case cut in two anywhere gives its message."""
        for case in self.cases:
            for pieces in single_splits(case.raw):
                self._check(case, pieces)

    def test_each_character(self) -> None:
        """Each case fed by characters gives its message."""
        for case in self.cases:
            self._check(case, list(case.raw))

    def test_random_cuts(self) -> None:
        """Each case cut at random gives its message."""
        for case in self.cases:
            for pieces in random_cuts(case.raw):
                self._check(case, pieces)

    def test_cut_off_anywhere(self) -> None:
        """A text that ends anywhere, by EOS or a limit, gives one message however it was cut."""
        for case in self.cases:
            for raw in _beginnings(case.raw):
                for finish in _FINISHES:
                    cut_off = attrs.evolve(case, raw=raw, finish=finish)
                    whole = self._message(cut_off, [raw])
                    for pieces in (list(raw), *random_cuts(raw, count=1)):
                        _require_equal(cut_off, pieces, self._message(cut_off, pieces), whole)

    def test_interleaved_instances(self) -> None:
        """Two instances fed in turn do not know of each other."""
        for first, second in zip(self.cases, [*self.cases[1:], *self.cases[:1]], strict=True):
            chains = [self._chain(first), self._chain(second)]
            events: list[list[ParserEvent]] = [[], []]
            for at in range(max(len(first.raw), len(second.raw))):
                for index, case in enumerate((first, second)):
                    events[index] += chains[index].feed(case.raw[at : at + 1])
            for index, case in enumerate((first, second)):
                events[index] += chains[index].close(case.finish)
                require_expected(case, list(case.raw), fold(events[index]))

    def test_nothing_sent_is_taken_back(self) -> None:
        """What was sent at any time is a beginning of the final message: no piece of a marker leaks."""
        for case in self.cases:
            final = self._message(case, [case.raw])
            chain = self._chain(case)
            sent: list[ParserEvent] = []
            for char in case.raw:
                sent += chain.feed(char)
                so_far = fold(sent)
                _require(
                    _begins(final, so_far), f"{case.name}: {so_far} was sent, but the message became {final}"
                )

    def test_hold_back(self) -> None:
        """Before any marker, no more is held than the longest marker and the newlines."""
        longest = max(map(len, self._markers()), default=0)
        for case in self.cases:
            chain = self._chain(case)
            sent = 0
            for at, char in enumerate(case.raw):
                fed = case.raw[: at + 1]
                if any(marker in fed for marker in self._markers()):
                    break
                sent += _sent(chain.feed(char))
                held = len(fed) - sent - fed.count("\n")
                _require(held <= longest, f"{case.name}: {held} characters are held after {fed!r}")

    def test_look_alikes_are_released(self) -> None:
        """The beginning of a marker that goes on otherwise is text, and is sent at once."""
        filler = self._filler()
        for marker in self._markers():
            for size in range(1, len(marker)):
                text = f"a{marker[:size]}{filler}"
                for in_reasoning in (False, True):
                    self._check_released(text, ParserContext(in_reasoning=in_reasoning))

    def test_malformed_calls_are_text(self) -> None:
        """Markup that holds no call comes out byte for byte."""
        derived = [marker + self._filler() for marker in self.tools.markers]
        for raw in derived if self.malformed is None else self.malformed:
            for finish in _FINISHES:
                for pieces in ([raw], list(raw)):
                    parser = self.tools(ParserContext())
                    events = [event for piece in pieces for event in parser.feed(piece)]
                    message = fold([*events, *parser.close(finish)])
                    _require(message == Message(reasoning=None, content=raw), f"{raw!r} became {message}")

    def test_vocabulary(self) -> None:
        """Reasoning parsers say reasoning and content, tool parsers content and calls; no delta is empty."""
        for case in self.cases:
            reasoning, tools = self.reasoning(case.context), self.tools(case.context)
            split = [*reasoning.feed(case.raw), *reasoning.close(case.finish)]
            _require_vocabulary(case, split, (ReasoningDelta, ContentDelta))
            answer = "".join(event.text for event in split if isinstance(event, ContentDelta))
            found = [*tools.feed(answer), *tools.close(case.finish)] if answer else []
            _require_vocabulary(case, found, (ContentDelta, ToolCall))

    def _chain(self, case: ParserCase) -> Chain:
        return Chain(self.reasoning(case.context), self.tools(case.context))

    def _message(self, case: ParserCase, pieces: Sequence[str]) -> Message:
        return replay(case, pieces, reasoning=self.reasoning, tools=self.tools)

    def _check(self, case: ParserCase, pieces: Sequence[str]) -> None:
        require_expected(case, pieces, self._message(case, pieces))

    def _check_released(self, text: str, context: ParserContext) -> None:
        chain = Chain(self.reasoning(context), self.tools(context))
        opened = any(marker in text for marker in self._markers())
        sent = sum(_sent(chain.feed(char)) for char in text)
        _require(opened or sent == len(text), f"{len(text) - sent} characters of {text!r} are held")

    def _markers(self) -> tuple[str, ...]:
        return (*self.reasoning.markers, *self.tools.markers)

    def _filler(self) -> str:
        """A character that no marker holds."""
        return next(char for char in _FILLERS if not any(char in marker for marker in self._markers()))


def _beginnings(raw: str) -> Iterator[str]:
    """Non-empty beginnings of the text: all of them, or a seeded choice where it is long."""
    ends: Sequence[int] = range(1, len(raw) + 1)
    if len(raw) > CUT_OFF_POSITIONS:
        ends = sorted(random.Random(SEED).sample(ends, CUT_OFF_POSITIONS))  # noqa: S311 -- reproducible, no secret
    return (raw[:end] for end in ends)


def _begins(final: Message, so_far: Message) -> bool:
    return (
        (final.reasoning or "").startswith(so_far.reasoning or "")
        and (final.content or "").startswith(so_far.content or "")
        and final.calls[: len(so_far.calls)] == so_far.calls
    )


def _sent(events: Iterable[ParserEvent]) -> int:
    return sum(len(event.text) for event in events if isinstance(event, (ReasoningDelta, ContentDelta)))


def _require(kept: bool, message: str) -> None:
    if not kept:
        raise ContractViolation(message)


def _require_equal(case: ParserCase, pieces: Sequence[str], got: object, expected: object) -> None:
    _require(got == expected, f"{case.name}: {pieces!r} at {case.finish} gave {got}, expected {expected}")


def _require_vocabulary(
    case: ParserCase, events: Iterable[ParserEvent], kinds: tuple[type[ParserEvent], ...]
) -> None:
    for event in events:
        _require(isinstance(event, kinds), f"{case.name}: {event} is not for this kind of parser to say")
        _require(isinstance(event, ToolCall) or event.text != "", f"{case.name}: a delta is empty")
