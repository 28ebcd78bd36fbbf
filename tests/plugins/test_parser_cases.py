"""The handed cases, one test a case and way of cutting, for the parsers alone."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterable

import attrs
import pytest
from maple_plugins.events import ToolCall
from maple_plugins.kit import (
    ContractViolation,
    ParserCase,
    ParserContract,
    random_cuts,
    replay,
    require_expected,
    single_splits,
)
from maple_plugins.parser import ReasoningParser, ToolParser
from maple_plugins.parsers.hermes import HermesToolParser
from maple_plugins.parsers.llama_json import LlamaJsonToolParser
from maple_plugins.parsers.maple_tools import MapleToolParser
from maple_plugins.parsers.mistral import MistralToolParser
from maple_plugins.parsers.none import NoReasoning, NoTools
from maple_plugins.parsers.qwen_xml import QwenXmlToolParser
from maple_plugins.parsers.think import ThinkParser

CASES = pathlib.Path(__file__).parents[1] / "data" / "cases"
TOOLS: dict[str, type[ToolParser]] = {
    "maple": MapleToolParser,
    "hermes": HermesToolParser,
    "qwen_xml": QwenXmlToolParser,
    "mistral": MistralToolParser,
    "llama_json": LlamaJsonToolParser,
    "none": NoTools,
}
Cuts = Callable[[str], Iterable[list[str]]]
WAYS: dict[str, Cuts] = {
    "whole": lambda raw: ([raw],),
    "every-single-split": single_splits,
    "each-character": lambda raw: (list(raw),),
    "50-random-cuts": random_cuts,
}


@attrs.frozen
class Handed:
    parser: str
    reasoning: type[ReasoningParser]
    case: ParserCase


def _handed() -> list[Handed]:
    lines = (CASES / "parser.jsonl").read_text("utf-8").splitlines()
    others = (CASES / "parser_other.jsonl").read_text("utf-8").splitlines()
    return [Handed("maple", ThinkParser, ParserCase.from_json(line)) for line in lines] + [
        Handed(json.loads(line)["parser"], NoReasoning, ParserCase.from_json(line)) for line in others
    ]


HANDED = _handed()


def _cases(parser: str) -> tuple[ParserCase, ...]:
    return tuple(handed.case for handed in HANDED if handed.parser == parser)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("handed", HANDED, ids=lambda handed: f"{handed.parser}: {handed.case.name}")
def test_a_handed_case_gives_its_message(handed: Handed, way: str) -> None:
    """A case's raw text becomes the case's message, however it was cut."""
    for pieces in WAYS[way](handed.case.raw):
        message = replay(handed.case, pieces, reasoning=handed.reasoning, tools=TOOLS[handed.parser])
        require_expected(handed.case, pieces, message)


def test_every_handed_case_is_there() -> None:
    """The copies hold all that was handed over, for every built-in tool parser."""
    assert len(HANDED) == 42 + 16
    assert {handed.parser for handed in HANDED} == set(TOOLS)


class TestMapleContract(ParserContract):
    reasoning = ThinkParser
    tools = MapleToolParser
    cases = _cases("maple")


class TestHermesContract(ParserContract):
    tools = HermesToolParser
    cases = _cases("hermes")


class TestQwenXmlContract(ParserContract):
    tools = QwenXmlToolParser
    cases = _cases("qwen_xml")


class TestMistralContract(ParserContract):
    tools = MistralToolParser
    cases = _cases("mistral")


class TestLlamaJsonContract(ParserContract):
    tools = LlamaJsonToolParser
    cases = _cases("llama_json")


class TestNoneContract(ParserContract):
    cases = _cases("none")


def test_a_wrong_message_is_told() -> None:
    """The check of a message names the case, the pieces and both messages."""
    case = ParserCase(name="greeting", raw="hi", content="hello")
    with pytest.raises(
        ContractViolation, match=r"greeting: \['hi'\] at stop gave .*'hi'.* expected .*'hello'"
    ):
        require_expected(case, ["hi"], replay(case, ["hi"]))


def test_arguments_keep_the_text_of_the_model() -> None:
    """Arguments are sent as the model wrote them, not as another spelling of the same JSON."""
    own = '{"b" : 1.50,\n "a": "\\u00fc"}'
    case = ParserCase(name="own text", raw=f'<tool_call>{{"name": "f", "arguments":  {own} }}</tool_call>')
    assert replay(case, [case.raw], tools=MapleToolParser).calls == (ToolCall("f", own),)
