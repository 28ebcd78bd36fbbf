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
from maple_plugins.kit_cases import (
    SEED,
    CaseChain,
    ContractViolation,
    ParserCase,
    is_object,
    random_cuts,
    replay,
    require,
    require_calls,
    require_equal,
    require_expected,
    single_splits,
)
from maple_plugins.parser import ParserContext, ReasoningParser, ToolParser
from maple_plugins.parsers.none import NoReasoning, NoTools

CUT_OFF_POSITIONS = 200
_FINISHES: tuple[ModelFinish, ...] = ("stop", "length")
_SPACES = (" ", "\n", "\n\n  ")
_STRING = "note"
"""The argument that takes a string with a marker in it."""
_FILLERS = "#~^`@$%&"

__all__ = [
    "ContractViolation",
    "ParserCase",
    "ParserContract",
    "random_cuts",
    "replay",
    "require_expected",
    "single_splits",
]


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
        require(len(self.cases) > 0, f"{type(self).__name__}.cases is empty")

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
                        require_equal(cut_off, pieces, self._message(cut_off, pieces), whole)

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
                require(
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
                require(held <= longest, f"{case.name}: {held} characters are held after {fed!r}")

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
                    case = ParserCase(name=f"malformed {raw!r}", raw=raw, finish=finish)
                    message = replay(case, pieces, tools=self.tools)
                    require(message == Message(reasoning=None, content=raw), f"{raw!r} became {message}")

    def test_white_space_around_arguments(self) -> None:
        """Where a call's JSON stands in the text, white space before and behind it changes no call.

        Where nothing closes a block, what is behind the JSON may be the answer's.
        """
        for case, at, end in self._with_arguments():
            for space in _SPACES:
                for before, behind in ((space, ""), ("", space)):
                    raw = case.raw[:at] + before + case.raw[at:end] + behind + case.raw[end:]
                    varied = attrs.evolve(case, name=f"{case.name}, {space!r} added", raw=raw)
                    require_calls(varied, self._message(varied, [raw]))

    def test_markers_in_strings(self) -> None:
        """A marker in a string of a call's JSON is the string's: it neither opens nor closes anything."""
        for case, at, end in self._with_arguments():
            name, arguments = case.calls[0]
            for marker in self.tools.markers:
                quoted = {**arguments, _STRING: f"a {marker} b"}
                raw = case.raw[:at] + json.dumps(quoted, ensure_ascii=False) + case.raw[end:]
                calls = ((name, quoted), *case.calls[1:])
                varied = attrs.evolve(case, name=f"{case.name}, {marker!r} in a string", raw=raw, calls=calls)
                for pieces in ([raw], list(raw)):
                    self._check(varied, pieces)

    def test_vocabulary(self) -> None:
        """Reasoning parsers say reasoning and content, tool parsers content and calls.

        No delta is empty, and neither is the name of a call; its arguments are the JSON text of an object.
        """
        for case in self.cases:
            reasoning, tools = self.reasoning(case.context), self.tools(case.context)
            split = [*reasoning.feed(case.raw), *reasoning.close(case.finish)]
            _require_vocabulary(case, split, (ReasoningDelta, ContentDelta))
            answer = "".join(event.text for event in split if isinstance(event, ContentDelta))
            found = [*tools.feed(answer), *tools.close(case.finish)] if answer else []
            _require_vocabulary(case, found, (ContentDelta, ToolCall))

    def _with_arguments(self) -> Iterator[tuple[ParserCase, int, int]]:
        """The cases whose first call's JSON can be found in the text, and where it begins and ends.

        Not every format is free of its tools' schemas, so that a case with schemas is left as it is.
        """
        for case in self.cases:
            found = None if case.tools or not case.calls else _place(case.raw, case.calls[0][1])
            if found is not None:
                yield case, *found

    def _chain(self, case: ParserCase) -> Chain:
        return CaseChain(case, self.reasoning, self.tools)

    def _message(self, case: ParserCase, pieces: Sequence[str]) -> Message:
        return replay(case, pieces, reasoning=self.reasoning, tools=self.tools)

    def _check(self, case: ParserCase, pieces: Sequence[str]) -> None:
        require_expected(case, pieces, self._message(case, pieces))

    def _check_released(self, text: str, context: ParserContext) -> None:
        chain = Chain(self.reasoning(context), self.tools(context))
        opened = any(marker in text for marker in self._markers())
        sent = sum(_sent(chain.feed(char)) for char in text)
        require(opened or sent == len(text), f"{len(text) - sent} characters of {text!r} are held")

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


def _place(raw: str, arguments: Mapping[str, object]) -> tuple[int, int] | None:
    """Where the JSON text of ``arguments`` stands, if it stands there once."""
    found = []
    for at in (at for at, char in enumerate(raw) if char == "{"):
        try:
            value, end = json.JSONDecoder().raw_decode(raw, at)
        except ValueError:
            continue
        if value == arguments:
            found.append((at, end))
    return found[0] if len(found) == 1 else None


def _begins(final: Message, so_far: Message) -> bool:
    return (
        (final.reasoning or "").startswith(so_far.reasoning or "")
        and (final.content or "").startswith(so_far.content or "")
        and final.calls[: len(so_far.calls)] == so_far.calls
    )


def _sent(events: Iterable[ParserEvent]) -> int:
    return sum(len(event.text) for event in events if isinstance(event, (ReasoningDelta, ContentDelta)))


def _require_vocabulary(
    case: ParserCase, events: Iterable[ParserEvent], kinds: tuple[type[ParserEvent], ...]
) -> None:
    for event in events:
        require(isinstance(event, kinds), f"{case.name}: {event} is not for this kind of parser to say")
        if isinstance(event, ToolCall):
            require(event.name != "", f"{case.name}: a call has no name")
            require(is_object(event.arguments), f"{case.name}: {event.arguments!r} is no JSON object")
        else:
            require(event.text != "", f"{case.name}: a delta is empty")
