"""Acme's own tests: the contract kit on its cases."""

from __future__ import annotations

from acme_parser.reasoning import AcmeReasoning
from acme_parser.tools import AcmeTools
from maple_plugins.kit import ParserCase, ParserContract


class TestAcme(ParserContract):
    reasoning = AcmeReasoning
    tools = AcmeTools
    cases = (
        ParserCase(name="thought", raw="[[We add.]]391", reasoning="We add.", content="391"),
        ParserCase(name="no thought", raw="391 [[or]] [so", content="391 [[or]] [so"),
        ParserCase(
            name="call",
            raw='[[Look <call f>{}</call>]]Sure.\n<call f>{"x": "</cal"}</call>',
            reasoning="Look <call f>{}</call>",
            content="Sure.",
            calls=(("f", {"x": "</cal"}),),
        ),
        ParserCase(name="no call", raw="<call me>maybe</call>", content="<call me>maybe</call>"),
    )
