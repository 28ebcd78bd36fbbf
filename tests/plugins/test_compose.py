"""The parser chain and the fold of its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from maple_plugins.compose import Chain
from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ReasoningDelta, ToolCall
from maple_plugins.fold import Message, fold
from maple_plugins.parser import ParserContext
from maple_plugins.parsers.maple_tools import MapleToolParser
from maple_plugins.parsers.none import NoReasoning, NoTools
from maple_plugins.parsers.think import ThinkParser

CALL = '<tool_call>{"name": "f"}</tool_call>'


class Talkative(NoReasoning):
    """Says everything in single characters, with empty deltas between."""

    def feed(self, text: str) -> Sequence[ParserEvent]:
        kinds: dict[str, type[ReasoningDelta] | type[ContentDelta]] = {"r": ReasoningDelta, "c": ContentDelta}
        return [kind(part) for char in text for kind in (kinds[char.lower()],) for part in ("", char, "")]

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        return [ReasoningDelta(""), ContentDelta("!"), ContentDelta("")]


class Closing(NoTools):
    """Says how the text ended."""

    markers: ClassVar[tuple[str, ...]] = ()

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        return [ContentDelta(finish), ToolCall("f", "{}")]


def _chain(*, in_reasoning: bool = True) -> Chain:
    context = ParserContext(in_reasoning=in_reasoning)
    return Chain(ThinkParser(context), MapleToolParser(context))


def test_only_the_answer_reaches_the_tool_parser() -> None:
    """A call inside reasoning stays reasoning, one in the answer is a call; one piece may hold it all."""
    assert _chain().feed(f"I {CALL}\n</think>\nSo\n{CALL}\n") == (
        ReasoningDelta(f"I {CALL}"),
        ContentDelta("So"),
        ToolCall("f", "{}"),
    )


def test_deltas_of_one_piece_are_joined_and_empty_ones_dropped() -> None:
    """One delta a kind and a piece, in the order they came."""
    chain = Chain(Talkative(ParserContext()), NoTools(ParserContext()))
    assert chain.feed("rrcccr") == (ReasoningDelta("rr"), ContentDelta("ccc"), ReasoningDelta("r"))
    assert chain.feed("") == ()


def test_closing_goes_through_the_chain_in_order() -> None:
    """What reasoning still held reaches the tool parser before that is closed itself."""
    chain = Chain(Talkative(ParserContext()), Closing(ParserContext()))
    assert chain.close("length") == (ContentDelta("!length"), ToolCall("f", "{}"))


def test_closing_an_open_block_gives_its_call() -> None:
    """The finish reason reaches the tool parser."""
    chain = _chain(in_reasoning=False)
    assert chain.feed('<tool_call>{"name": "f"}') == ()
    assert chain.close("stop") == (ToolCall("f", "{}"),)


def test_the_end_of_reasoning_is_passed_on() -> None:
    """None while it is open, then the characters before the marker."""
    chain = _chain()
    assert chain.reasoning_end is None
    chain.feed("ab</think>c")
    assert chain.reasoning_end == 2


def test_fold() -> None:
    """Texts are joined by kind; content is None only beside calls, reasoning wherever there is none."""
    call = ToolCall("f", "{}")
    assert fold([]) == Message(reasoning=None, content="")
    assert fold([call, call]) == Message(reasoning=None, content=None, calls=(call, call))
    assert fold([ReasoningDelta("r"), ContentDelta("a"), call, ContentDelta("b")]) == Message(
        reasoning="r", content="ab", calls=(call,)
    )
