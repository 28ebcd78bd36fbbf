"""Calls as ``<call f>{"x": 1}</call>``."""

from __future__ import annotations

from collections.abc import Sequence

from maple_plugins.blocks import DelimitedToolParser
from maple_plugins.events import ToolCall
from maple_plugins.json_calls import is_json


class AcmeTools(DelimitedToolParser):
    """One call a block."""

    markers = ("<call ", "</call>")

    def calls(self, body: str) -> Sequence[ToolCall]:
        """The name up to ``>``, then the arguments."""
        name, _, arguments = body.partition(">")
        arguments = arguments.strip()
        return (ToolCall(name, arguments),) if name and is_json(arguments, "{") else ()
