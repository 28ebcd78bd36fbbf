"""What a parser says about the model's text: the vocabulary between parsers, turns and protocols.

Every class here is immutable and may cross threads.
"""

from __future__ import annotations

from typing import Literal

import attrs

ModelFinish = Literal["stop", "length"]
"""Why the model's text ended: ``stop`` (EOS or a stop string) or ``length`` (a limit cut it)."""


@attrs.frozen
class ReasoningDelta:
    """More of the reasoning trace. ``text`` is never empty."""

    text: str


@attrs.frozen
class ContentDelta:
    """More of the answer. ``text`` is never empty."""

    text: str


@attrs.frozen
class ToolCall:
    """One whole tool call.

    ``name`` is never empty. ``arguments`` is JSON text of an object: the model's own text of it, trimmed
    (``"{}"`` where the model gave none).
    """

    name: str
    arguments: str


ParserEvent = ReasoningDelta | ContentDelta | ToolCall
