"""``none``: no reasoning, or no tool calls: the model's text is the answer as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from maple_plugins.events import ContentDelta, ModelFinish, ParserEvent
from maple_plugins.parser import ParserContext


class NoTools:
    """Leaves the answer as it is."""

    markers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, context: ParserContext) -> None:
        pass

    def feed(self, text: str) -> Sequence[ParserEvent]:
        """Pass the piece on."""
        return (ContentDelta(text),)

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        """Nothing is ever held."""
        return ()


class NoReasoning(NoTools):
    """Calls everything the answer, even where the prompt opened a reasoning block."""

    @property
    def reasoning_end(self) -> int | None:
        """Always 0: there is no reasoning."""
        return 0

    @classmethod
    def prompt_ends_inside(cls, prompt: str) -> bool:
        """Never."""
        return False
