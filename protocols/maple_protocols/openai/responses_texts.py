"""Output items whose text grows: a message, reasoning, or reasoning as a summary. Each has one part."""

from __future__ import annotations

from typing import ClassVar, Literal

from maple_protocols.adapter import JsonObject
from maple_protocols.openai import responses_tables as tables
from maple_protocols.openai.responses_tables import ItemStatus

Kind = Literal["message", "reasoning", "summary"]
Events = list[JsonObject]


class TextItem:
    """One item at ``index`` of the output. Subclasses give the names of its events and its shape."""

    kind: ClassVar[Kind]
    prefix: ClassVar[str]
    part_events: ClassVar[str]
    text_events: ClassVar[str]
    part_index: ClassVar[str] = "content_index"
    extras: ClassVar[JsonObject] = {}
    """What the events with text hold beside it."""

    def __init__(self, key: str, index: int) -> None:
        self.index = index
        self.id = f"{self.prefix}_{key}{index:04x}"
        self._pieces: list[str] = []

    def opened(self) -> Events:
        """The item and its part begin, both empty."""
        added = {"type": "response.output_item.added", "output_index": self.index}
        return [
            added | {"item": self.item("in_progress")},
            self._event(f"{self.part_events}.added") | {"part": self.part()},
        ]

    def grown(self, text: str) -> Events:
        """More text."""
        self._pieces.append(text)
        return [self._event(f"{self.text_events}.delta") | {"delta": text} | self.extras]

    def closed(self, status: ItemStatus) -> Events:
        """The text, the part and the item are complete, or cut."""
        done = {"type": "response.output_item.done", "output_index": self.index, "item": self.item(status)}
        return [
            self._event(f"{self.text_events}.done") | {"text": self.text} | self.extras,
            self._event(f"{self.part_events}.done") | {"part": self.part()},
            done,
        ]

    @property
    def text(self) -> str:
        """What has come so far."""
        return "".join(self._pieces)

    def part(self) -> object:
        """The part as it stands."""
        raise NotImplementedError

    def item(self, status: ItemStatus) -> tables.OutputMessage | tables.OutputReasoning:
        """The item as it stands; it has no part before the first text."""
        raise NotImplementedError

    def _event(self, name: str) -> JsonObject:
        place = {"item_id": self.id, "output_index": self.index, self.part_index: 0}
        return {"type": f"response.{name}", **place}


class MessageText(TextItem):
    """What the model says."""

    kind = "message"
    prefix = "msg"
    part_events = "content_part"
    text_events = "output_text"
    extras: ClassVar[JsonObject] = {"logprobs": []}

    def part(self) -> tables.OutputText:
        """output_text."""
        return tables.OutputText(type="output_text", text=self.text, annotations=(), logprobs=())

    def item(self, status: ItemStatus) -> tables.OutputMessage:
        """Message."""
        content = (self.part(),) if self._pieces else ()
        return tables.OutputMessage(
            type="message", id=self.id, status=status, role="assistant", content=content
        )


class ReasoningText(TextItem):
    """What the model thinks."""

    kind = "reasoning"
    prefix = "rs"
    part_events = "content_part"
    text_events = "reasoning_text"

    def part(self) -> tables.ReasoningText:
        """reasoning_text."""
        return tables.ReasoningText(type="reasoning_text", text=self.text)

    def item(self, status: ItemStatus) -> tables.OutputReasoning:
        """Reasoning with content."""
        content = (self.part(),) if self._pieces else ()
        return tables.OutputReasoning(
            type="reasoning", id=self.id, status=status, summary=(), content=content
        )


class SummaryText(TextItem):
    """What the model thinks, for clients that show a summary alone: all of it is the summary."""

    kind = "summary"
    prefix = "rs"
    part_events = "reasoning_summary_part"
    text_events = "reasoning_summary_text"
    part_index = "summary_index"

    def part(self) -> tables.SummaryText:
        """summary_text."""
        return tables.SummaryText(type="summary_text", text=self.text)

    def item(self, status: ItemStatus) -> tables.OutputReasoning:
        """Reasoning with a summary."""
        summary = (self.part(),) if self._pieces else ()
        return tables.OutputReasoning(
            type="reasoning", id=self.id, status=status, summary=summary, content=()
        )
