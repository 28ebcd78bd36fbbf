"""``hermes``: the tool calls of Hermes templates, which Qwen 2.5 and many others share."""

from __future__ import annotations

from maple_plugins.tagged import JsonTagParser


class HermesToolParser(JsonTagParser):
    """JSON calls between ``<tool_call>`` tags."""
