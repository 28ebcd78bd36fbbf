"""POST /v1/responses, outwards: items, their events, and the whole response.

The whole response is what the stream's last event carries: both come from one Transcript.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import attrs
from maple_plugins.events import ContentDelta, ReasoningDelta

from maple_protocols.adapter import Done, Frame, Identity, JsonObject, NumberedCall, TurnEvent, Usage
from maple_protocols.answers import as_json
from maple_protocols.ask import Ask
from maple_protocols.errors import ErrorBody
from maple_protocols.openai.chat_out import DONE
from maple_protocols.openai.chat_tables import CompletionDetails
from maple_protocols.openai.responses_calls import call_events, call_item
from maple_protocols.openai.responses_tables import (
    IncompleteDetails,
    InputDetails,
    ItemStatus,
    OutputItem,
    Response,
    ResponseFailure,
    ResponseUsage,
)
from maple_protocols.openai.responses_texts import Kind, MessageText, ReasoningText, SummaryText, TextItem
from maple_protocols.timings import Progress

Events = list[JsonObject]
_TEXTS: dict[Kind, type[TextItem]] = {
    "message": MessageText,
    "reasoning": ReasoningText,
    "summary": SummaryText,
}


class Transcript:
    """One turn's events as response events without their numbers, and the response as it stands."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._identity = identity
        summarised = cast("JsonObject", ask.echo.get("reasoning", {})).get("summary") is not None
        self._thought: Kind = "summary" if summarised else "reasoning"
        self._items: list[OutputItem] = []
        self._texts: list[str] = []
        self._open: TextItem | None = None
        self.response = self._response("in_progress")
        """The response as the last lifecycle event carried it."""

    def begin(self) -> Events:
        """The response is made and under way."""
        return [
            {"type": f"response.{step}", "response": self.response} for step in ("created", "in_progress")
        ]

    def waiting(self) -> Events:
        """Under way still, with every item's text so far: clients count events, not comments."""
        output = [*self._items, *([self._open.item("in_progress")] if self._open else [])]
        return [
            {"type": "response.in_progress", "response": self._response("in_progress", output=tuple(output))}
        ]

    def event(self, event: TurnEvent) -> Events:
        """What one event of the turn means."""
        match event:
            case ReasoningDelta(text):
                return self._grow(self._thought, text) if self._ask.include_reasoning is not False else []
            case ContentDelta(text):
                return self._grow("message", text)
            case NumberedCall():
                return [*self._close("completed"), *self._call(event)]
            case _:
                return self._end(event)

    def fail(self, error: ErrorBody) -> Events:
        """The turn broke off: what there is stands, the open item as incomplete and unannounced."""
        self._close("incomplete")
        failure = ResponseFailure(code="server_error", message=error.message)
        self.response = self._response("failed", error=failure)
        return [{"type": "response.failed", "response": self.response}]

    def _grow(self, kind: Kind, text: str) -> Events:
        events: Events = []
        if self._open is None or self._open.kind != kind:
            events += self._close("completed")
            self._open = _TEXTS[kind](self._identity.key, len(self._items))
            events += self._open.opened()
        return events + self._open.grown(text)

    def _close(self, status: ItemStatus) -> Events:
        closing, self._open = self._open, None
        if closing is None:
            return []
        self._items.append(closing.item(status))
        if closing.kind == "message":
            self._texts.append(closing.text)
        return closing.closed(status)

    def _call(self, call: NumberedCall) -> Events:
        index = len(self._items)
        item = call_item(call, self._ask.call_forms, f"{self._identity.key}{index:04x}")
        self._items.append(item)
        return call_events(item, index)

    def _end(self, done: Done) -> Events:
        cut = done.finish == "length"
        status: Literal["incomplete", "completed"] = "incomplete" if cut else "completed"
        events = self._close(status)
        self.response = self._response(
            status,
            completed_at=None if cut else done.at,
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if cut else None,
            usage=_usage(done.usage),
            timings=done.timings if self._ask.timings else None,
        )
        return [*events, {"type": f"response.{status}", "response": self.response}]

    def _response(self, status: str, **facts: object) -> JsonObject:
        fields: dict[str, Any] = {
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": tuple(self._items),
            "usage": None,
            **self._ask.echo,
            **facts,
        }
        used = {
            name: getattr(self._identity, name)
            for name in ("temperature", "top_p")
            if fields.get(name) is None
        }
        response = Response(
            id=f"resp_{self._identity.key}",
            object="response",
            created_at=self._identity.created,
            status=cast("Any", status),
            background=False,
            model=self._identity.model,
            output_text="".join(self._texts),
            **(fields | used),
        )
        return as_json(response)


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(cached_tokens=usage.cached_tokens, cache_write_tokens=0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=CompletionDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


class ResponsesEncoder:
    """One turn's events as numbered frames, each named by its type."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._transcript = Transcript(ask, identity)
        self._sent = 0

    def opening(self) -> Sequence[Frame]:
        """response.created and response.in_progress."""
        return self._frames(self._transcript.begin())

    def waiting(self) -> Sequence[Frame]:
        """response.in_progress once more."""
        return self._frames(self._transcript.waiting())

    def progress(self, progress: Progress) -> Sequence[Frame]:
        """response.in_progress with how far the prompt is."""
        [event] = self._transcript.waiting()
        return self._frames([{**event, "prompt_progress": attrs.asdict(progress)}])

    def event(self, event: TurnEvent) -> Sequence[Frame]:
        """Items, parts and deltas; for Done, what closes them and the whole response."""
        return self._frames(self._transcript.event(event))

    def failure(self, error: ErrorBody) -> Sequence[Frame]:
        """response.failed."""
        return self._frames(self._transcript.fail(error))

    def closing(self) -> Sequence[Frame]:
        """``[DONE]``."""
        return (DONE,)

    def _frames(self, events: Events) -> Sequence[Frame]:
        frames = []
        for event in events:
            data = as_json({**event, "sequence_number": self._sent})
            frames.append(Frame(event=str(event["type"]), data=data))
            self._sent += 1
        return frames


class ResponsesFold:
    """One turn's events as one response."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._transcript = Transcript(ask, identity)

    def event(self, event: TurnEvent) -> None:
        """Take the next event of the turn."""
        self._transcript.event(event)

    def body(self) -> JsonObject:
        """The answer."""
        return self._transcript.response
