"""The contract kit: it passes good parsers and catches each way of being a bad one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from typing import ClassVar

import attrs
import pytest
from maple_plugins.blocks import BlockToolParser, DelimitedToolParser
from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent, ReasoningDelta, ToolCall
from maple_plugins.json_calls import is_json, read_call
from maple_plugins.kit import (
    ContractViolation,
    ParserCase,
    ParserContract,
    random_cuts,
    replay,
    single_splits,
)
from maple_plugins.parser import ParserContext, ToolSpec
from maple_plugins.parsers.maple_tools import MapleToolParser
from maple_plugins.parsers.none import NoReasoning, NoTools
from maple_plugins.parsers.think import ThinkParser

CALL = '<tool_call>{"name": "f"}</tool_call>'
CASE = ParserCase(name="a call", raw=f"Hm <b.\n{CALL}", content="Hm <b.", calls=(("f", {}),))
CALL_WITH = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
CHECKS = tuple(name for name in vars(ParserContract) if name.startswith("test_"))


def _violated(contract: type[ParserContract]) -> set[str]:
    """The checks that a parser fails."""
    failed = set()
    for name in CHECKS:
        try:
            getattr(contract(), name)()
        except ContractViolation:
            failed.add(name)
    return failed


class _Collecting(NoTools):
    """Holds everything until the end, then reads the whole text at once."""

    markers = ("<tool_call>", "</tool_call>")

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._text = ""

    def feed(self, text: str) -> Sequence[ParserEvent]:
        self._text += text
        return ()

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        parser = MapleToolParser(ParserContext())
        return [*(parser.feed(self._text) if self._text else ()), *parser.close(finish)]


class _PieceByPiece(NoTools):
    """Looks for calls in each piece alone."""

    markers = ("<tool_call>", "</tool_call>")

    def feed(self, text: str) -> Sequence[ParserEvent]:
        parser = MapleToolParser(ParserContext())
        return [*parser.feed(text), *parser.close("stop")]


class _Shared(MapleToolParser):
    """Keeps its state in the class."""

    one: ClassVar[list[MapleToolParser]] = []

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self.one[:] = [MapleToolParser(context)]

    def feed(self, text: str) -> Sequence[ParserEvent]:
        return self.one[0].feed(text)

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        return self.one[0].close(finish)


class _Dropping(MapleToolParser):
    """Drops every block without a call."""

    def feed(self, text: str) -> Sequence[ParserEvent]:
        return [event for event in super().feed(text) if "<tool_call>" not in str(event)]

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        return [event for event in super().close(finish) if "<tool_call>" not in str(event)]


class _Wordy(MapleToolParser):
    """Says empty deltas."""

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        return [*super().close(finish), ContentDelta("")]


class _Musing(NoReasoning):
    """Calls tools from the reasoning parser."""

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        return [ToolCall("f", "{}")]


class _Leaking(MapleToolParser):
    """Sends the marker it has found, and then drops everything before it."""

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        return [ToolCall("f", "{}"), *super().close(finish)]


class _Nameless(MapleToolParser):
    """Calls nothing, with a list."""

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        return [*super().close(finish), self.call]

    call: ClassVar[ToolCall] = ToolCall("", "{}")


class _Listing(_Nameless):
    call = ToolCall("f", "[1]")


class _Cut(_Nameless):
    call = ToolCall("f", '{"a": ')


class _Exact(DelimitedToolParser):
    """Takes no white space around arguments."""

    markers = ("<tool_call>", "</tool_call>")

    def calls(self, body: str) -> Sequence[ToolCall]:
        found = re.fullmatch(r'\{"name": "(\w+)", "arguments": (\{.*\})\}', body)
        return [ToolCall(found[1], found[2])] if found else []


def _contract(tools: type[NoTools | BlockToolParser], *cases: ParserCase) -> type[ParserContract]:
    return type("Contract", (ParserContract,), {"tools": tools, "cases": cases or (CASE,)})


def test_a_good_parser_keeps_its_contract() -> None:
    """The built-in parsers pass every check."""
    other = ParserCase(
        name="text", raw="a\n\nb <tool_call>x</tool_call>", content="a\n\nb <tool_call>x</tool_call>"
    )
    assert _violated(_contract(MapleToolParser, CASE, other)) == set()


def test_a_parser_that_collects_holds_too_much() -> None:
    """Its messages are right, but nothing streams."""
    case = attrs.evolve(
        CASE, name="long", raw="So I shall now call. " + CASE.raw, content="So I shall now call. Hm <b."
    )
    assert _violated(_contract(_Collecting, case)) == {"test_hold_back", "test_look_alikes_are_released"}


def test_a_parser_that_reads_pieces_alone_depends_on_cuts() -> None:
    """It finds the call only in a piece that holds all of it."""
    assert {
        "test_every_single_split",
        "test_each_character",
        "test_random_cuts",
        "test_cut_off_anywhere",
    } <= _violated(_contract(_PieceByPiece))


def test_a_parser_with_shared_state_mixes_turns() -> None:
    """Alone it works, beside another it does not."""
    assert "test_interleaved_instances" in _violated(
        _contract(_Shared, CASE, attrs.evolve(CASE, raw=CALL, content=None))
    )


def test_a_parser_that_drops_markup_is_caught() -> None:
    """Blocks without a call belong to the answer."""
    assert _violated(_contract(_Dropping)) == {"test_malformed_calls_are_text"}


def test_empty_deltas_are_caught() -> None:
    """A delta says something."""
    assert _violated(_contract(_Wordy)) == {"test_vocabulary"}


@pytest.mark.parametrize(
    ("tools", "told"),
    [(_Nameless, "a call has no name"), (_Listing, "no JSON object"), (_Cut, "no JSON object")],
)
def test_calls_of_nothing_and_with_no_object_are_caught(tools: type[MapleToolParser], told: str) -> None:
    """Clients fail on both; the failure names the case."""
    with pytest.raises(ContractViolation, match=f"^a call: .*{told}"):
        _contract(tools)().test_vocabulary()


def test_white_space_around_arguments_must_not_matter() -> None:
    """Models write it; a parser that reads one spelling alone is caught."""
    case = ParserCase(name="one", raw=CALL_WITH, content=None, calls=(("f", {"x": 1}),))
    assert _violated(_contract(MapleToolParser, case)) == set()
    assert _violated(_contract(_Exact, case)) == {"test_white_space_around_arguments"}


def test_a_marker_in_a_string_must_not_matter() -> None:
    """Agents write code about tool calls; a parser that ends a block there is caught."""

    class Blunt(_Collecting):
        def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
            body = self._text.partition("<tool_call>")[2].partition("</tool_call>")[0]
            call = read_call(body.strip()) if is_json(body.strip(), "{") else None
            return [call] if call else [ContentDelta(self._text)]

    case = ParserCase(name="one", raw=CALL_WITH, content=None, calls=(("f", {"x": 1}),))
    assert "test_markers_in_strings" in _violated(_contract(Blunt, case))
    with pytest.raises(ContractViolation, match=r"^one, '</tool_call>' in a string: "):
        _contract(Blunt, case)().test_markers_in_strings()


def test_a_parser_that_speaks_out_of_turn_is_caught() -> None:
    """Calls are not for the reasoning parser to say."""
    contract = _contract(MapleToolParser)
    assert "test_vocabulary" in _violated(type("Contract", (contract,), {"reasoning": _Musing}))


def test_a_parser_that_raises_is_told_with_its_case() -> None:
    """Not as an error of the kit's; what it raised is the cause."""

    class Raising(MapleToolParser):
        def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
            raise KeyError("name")

    with pytest.raises(ContractViolation, match=r"^a call: .* raised KeyError\('name'\)") as caught:
        _contract(Raising)().test_whole_text()
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ContractViolation, match=r"^a call: "):
        _contract(Raising)().test_interleaved_instances()


def test_taking_back_what_was_sent_is_caught() -> None:
    """Text that went out as content and then became a call has leaked."""

    class Hasty(NoTools):
        markers = ("<tool_call>", "</tool_call>")

        def __init__(self, context: ParserContext) -> None:
            super().__init__(context)
            self._text = ""

        def feed(self, text: str) -> Sequence[ParserEvent]:
            self._text += text
            whole = len(text) > 1
            return () if whole else (ContentDelta(text),)

        def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
            parser = MapleToolParser(ParserContext())
            return [*parser.feed(self._text), *parser.close(finish)]

    assert "test_nothing_sent_is_taken_back" in _violated(_contract(Hasty))


def test_a_contract_without_cases_is_none() -> None:
    """It would hold for any parser."""
    assert "test_there_are_cases" in _violated(ParserContract)


def test_an_author_may_name_what_is_malformed() -> None:
    """Instead of what is derived from the markers."""
    contract = _contract(MapleToolParser)
    assert _violated(type("Contract", (contract,), {"malformed": ("<tool_call>{</tool_call>",)})) == set()
    assert _violated(type("Contract", (contract,), {"malformed": (CALL,)})) == {
        "test_malformed_calls_are_text"
    }


def test_cases_tell_the_parsers_of_the_tools() -> None:
    """The context holds what a request offered."""
    spec = ToolSpec("f", {"type": "object"})
    case = ParserCase(name="tools", raw="x", in_reasoning=True, tools=(spec,))
    assert case.context == ParserContext(in_reasoning=True, tools=(spec,))


def test_long_cases_are_cut_off_at_a_choice_of_positions() -> None:
    """A long text is still checked, in bearable time."""
    raw = "r" * 200 + "</think>" + "a" * 20
    case = ParserCase(name="long", raw=raw, in_reasoning=True, reasoning="r" * 200, content="a" * 20)
    contract = type("Contract", (ParserContract,), {"reasoning": ThinkParser, "cases": (case,)})
    contract().test_cut_off_anywhere()


def test_replay_folds_what_new_parsers_say() -> None:
    """Without parsers the text is the content."""
    assert replay(CASE, ["a", "b"]).content == "ab"
    case = ParserCase(name="think", raw="", in_reasoning=True)
    assert replay(case, ["a", "</think>b"], reasoning=ThinkParser).reasoning == "a"


def test_ways_of_cutting() -> None:
    """Pieces are never empty and always make up the text; seeds make cuts repeatable."""
    assert list(single_splits("abc")) == [["a", "bc"], ["ab", "c"]]
    assert list(single_splits("a")) == []
    cuts = list(random_cuts("0123456789" * 5, count=20))
    assert {"".join(pieces) for pieces in cuts} == {"0123456789" * 5}
    assert all(piece for pieces in cuts for piece in pieces)
    assert len({tuple(pieces) for pieces in cuts}) > 10
    assert cuts == list(random_cuts("0123456789" * 5, count=20))
    assert list(random_cuts("", count=1)) == [[]]


def test_the_kit_needs_no_test_framework() -> None:
    """A parser may be served from the file that holds its tests."""
    script = "import sys, maple_plugins.kit; print('pytest' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
    )
    assert (run.stdout, run.stderr) == ("False\n", "")


def test_reasoning_deltas_count_as_sent() -> None:
    """The hold-back check knows both kinds of text."""
    case = ParserCase(
        name="think", raw="We add up.</think>3", in_reasoning=True, reasoning="We add up.", content="3"
    )
    contract = type("Contract", (ParserContract,), {"reasoning": ThinkParser, "cases": (case,)})
    assert _violated(contract) == set()
    assert list(ThinkParser(case.context).feed("We")) == [ReasoningDelta("We")]
