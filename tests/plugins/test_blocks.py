"""Delimited formats: one opening and one closing marker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from maple_plugins.blocks import DelimitedToolParser
from maple_plugins.events import ModelFinish, ToolCall
from maple_plugins.kit import ParserCase, replay, single_splits


class Angles(DelimitedToolParser):
    """``<<f>>`` calls f, ``<<f g>>`` both."""

    markers = ("<<", ">>")

    def calls(self, body: str) -> Sequence[ToolCall]:
        return [ToolCall(name, "{}") for name in body.split() if name.isalpha()]


@pytest.mark.parametrize(
    ("raw", "finish", "content", "names"),
    [
        ("a\n<<f>>\nb", "stop", "ab", "f"),
        ("<<f g>><<h>>", "stop", None, "fgh"),
        ("<<1>>\n<<f>>", "stop", "<<1>>", "f"),
        ("a\n<<>>\n", "stop", "a\n<<>>\n", ""),
        ("<<f <<g>>>", "stop", ">", "f"),
        ("<<f", "stop", None, "f"),
        ("<<1>", "stop", "<<1>", ""),
        ("<<f", "length", "<<f", ""),
        ("<<f>", "length", "<<f>", ""),
        ("a < b <", "stop", "a < b <", ""),
    ],
)
def test_the_first_closing_marker_ends_a_block(
    raw: str, finish: ModelFinish, content: str | None, names: str
) -> None:
    """A block with calls is replaced by them, any other is text."""
    case = ParserCase(name=raw, raw=raw, finish=finish)
    for pieces in ([raw], list(raw), *single_splits(raw)):
        message = replay(case, pieces, tools=Angles)
        assert (message.content, "".join(call.name for call in message.calls)) == (content, names)
