"""``maple``: Maple-Preview's tool calls, JSON between ``<tool_call>`` tags, with the model's habits."""

from __future__ import annotations

from typing import ClassVar

from maple_plugins.tagged import CLOSER, OPENER, JsonTagParser


class MapleToolParser(JsonTagParser):
    """JSON calls between tags; the ``</think>`` that Maple may put directly after a block is dropped."""

    markers: ClassVar[tuple[str, ...]] = (OPENER, CLOSER, "</think>")
    straggler = "</think>"
