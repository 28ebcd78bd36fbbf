"""Tool calls written as ``!CALL get_weather {"city": "Lagos"} !DONE``."""

from collections.abc import Sequence

from maple_plugins.blocks import DelimitedToolParser
from maple_plugins.events import ToolCall
from maple_plugins.json_calls import is_json
from maple_plugins.kit import ParserCase, ParserContract


class ShoutTools(DelimitedToolParser):
    markers = ("!CALL", "!DONE")

    def calls(self, body: str) -> Sequence[ToolCall]:
        name, _, arguments = body.strip().partition(" ")
        arguments = arguments.strip()
        return (ToolCall(name, arguments),) if name and is_json(arguments, "{") else ()


class TestShoutTools(ParserContract):
    tools = ShoutTools
    cases = (
        ParserCase(name="a call", raw='Hm.\n!CALL f {"x": 1} !DONE', content="Hm.", calls=(("f", {"x": 1}),)),
        ParserCase(name="no call", raw="!CALL me later !DONE", content="!CALL me later !DONE"),
    )
