"""What a parser says a call looks like, it reads as that call."""

from __future__ import annotations

import json

import pytest
from maple_plugins.events import ToolCall
from maple_plugins.parser import ParserContext, TellsCallForm, ToolSpec
from maple_plugins.registry import tool_parser

NAMES = ("maple", "hermes", "qwen_xml", "mistral", "llama_json", "none")
FORMS = [name for name in NAMES if issubclass(tool_parser(name), TellsCallForm)]


def test_the_own_parser_tells_its_form() -> None:
    """Without it no call could be forced."""
    assert {"maple", "hermes"} <= set(FORMS)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("spacing", [(", ", ": "), (",", ":"), (" ,\n", " : ")])
def test_calls_in_the_form_are_read_for_every_cut(name: str, spacing: tuple[str, str]) -> None:
    """Two calls, with markers inside an argument, and white space as a grammar allows it."""
    parser = tool_parser(name)
    assert issubclass(parser, TellsCallForm)
    form = parser.call_form()
    wanted = [("look", {"n": 1}), ("look", {"text": f"{form.closer}{form.opener}"})]
    bodies = [
        json.dumps({form.name: one, form.arguments: arguments}, separators=spacing)
        for one, arguments in wanted
    ]
    text = form.separator.join(f"{form.opener}{body}{form.closer}" for body in bodies)
    for cut in range(len(text) + 1):
        reading = parser(ParserContext(tools=(ToolSpec("look"),)))
        events = [event for part in (text[:cut], text[cut:]) if part for event in reading.feed(part)]
        events += reading.close("stop")
        calls = [event for event in events if isinstance(event, ToolCall)]
        assert [(call.name, json.loads(call.arguments)) for call in calls] == wanted
        assert len(calls) == len(events)
