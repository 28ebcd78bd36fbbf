"""The contract of a parser plugin.

A parser is made once per turn, is fed the model's text in pieces cut anywhere, and answers with events. There
is no whole-text entry point: streaming is the only mode, so that the folded stream and the whole answer
cannot disagree. Instances are used by one turn on one thread; they share nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Protocol, runtime_checkable

import attrs

from maple_plugins.events import ModelFinish, ParserEvent

MarkupFault = Literal["no_call", "unclosed", "cut_off"]
"""Why a tool block came back as text: it held no good call, and it was closed (``no_call``), still open when
the model stopped (``unclosed``), or cut by a limit, whatever it held (``cut_off``)."""


@attrs.frozen
class ToolSpec:
    """One tool the request offered: its name and its JSON Schema (None where the request gave none)."""

    name: str
    parameters: Mapping[str, object] | None = None


@attrs.frozen(kw_only=True)
class ParserContext:
    """What a parser may know about its turn.

    ``in_reasoning``: the prompt ended inside the reasoning block, so the text starts inside it.
    ``tools``: the tools that were shown to the model. ``keeps_line``: between text before and text after a tool
    block one newline stays of those that are trimmed. ``continues``: the text goes on from what the prompt ends
    with, so that nothing is trimmed at its start.
    """

    in_reasoning: bool = False
    tools: tuple[ToolSpec, ...] = ()
    keeps_line: bool = False
    continues: bool = False


@runtime_checkable
class Parser(Protocol):
    """Text in, events out.

    ``markers`` lists every string that opens or closes a block of this format; no more of the text than the
    longest of them, plus the newlines before it, is ever held back outside an open block.
    """

    markers: ClassVar[tuple[str, ...]]

    def __init__(self, context: ParserContext) -> None: ...

    def feed(self, text: str) -> Sequence[ParserEvent]:
        """Take the next piece (never empty) and return what is certain now."""
        ...

    def close(self, finish: ModelFinish) -> Sequence[ParserEvent]:
        """End the text and return everything still held. Called once; nothing is fed afterwards."""
        ...


@runtime_checkable
class ReasoningParser(Parser, Protocol):
    """A parser that splits reasoning from the answer: emits ReasoningDelta and ContentDelta only.

    One whose block always ends with the same text may tell it (see ``TellsCloser``).
    """

    @property
    def reasoning_end(self) -> int | None:
        """How many characters of the fed text came before the closing marker.

        None while the block is open (also after ``close`` if it never closed); 0 for text without reasoning.
        """
        ...

    @classmethod
    def prompt_ends_inside(cls, prompt: str) -> bool:
        """Whether a rendered prompt leaves the reasoning block open. Client text in it holds no markers."""
        ...


class ToolParser(Parser, Protocol):
    """A parser that finds tool calls in the answer: emits ContentDelta and ToolCall only."""


@runtime_checkable
class TellsCloser(Protocol):
    """What a reasoning parser may have on top of its contract: stop strings can then wait for the answer."""

    @classmethod
    def closer(cls) -> str:
        """The text whose first occurrence ends an open block."""
        ...


@attrs.frozen(kw_only=True)
class CallForm:
    """How a model writes a call: ``opener``, a JSON object with the name and the arguments, ``closer``.

    ``separator`` stands between calls, ``name`` and ``arguments`` are the object's keys, in their order.
    """

    opener: str
    closer: str
    separator: str = "\n"
    name: str = "name"
    arguments: str = "arguments"


@runtime_checkable
class TellsCallForm(Protocol):
    """What a tool parser may have on top of its contract: the server can then have the model call.

    What is written in this form, the parser reads as that call.
    """

    @classmethod
    def call_form(cls) -> CallForm:
        """The form of a call."""
        ...


@runtime_checkable
class TellsFault(Protocol):
    """What a tool parser may have on top of its contract, so that the server can log malformed markup."""

    @property
    def fault(self) -> MarkupFault | None:
        """Why the first block that came back as text did; None as long as none has."""
        ...
