"""POST /v1/responses, outwards: items, their events, and the whole response.

The whole response is what the stream's last event carries: both come from one Transcript.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from maple_plugins.events import ContentDelta, ReasoningDelta

from maple_protocols.adapter import Done, Frame, Identity, JsonObject, NumberedCall, TurnEvent, Usage
from maple_protocols.ask import Ask
from maple_protocols.errors import ErrorBody
from maple_protocols.openai.chat_out import DONE

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Events = list[JsonObject]


class _Texts:
    """One item whose text grows: a message, or reasoning. One part, at content index 0."""

    def __init__(self, kind: Literal["message", "reasoning"], key: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.id = f"{'msg' if kind == 'message' else 'rs'}_{key}{index:04x}"
        self._pieces: list[str] = []

    def opened(self) -> Events:
        """The item and its part begin, both empty."""
        added = {"type": "response.output_item.added", "output_index": self.index}
        return [
            added | {"item": self.item("in_progress")},
            self._event("content_part.added") | {"part": self._part()},
        ]

    def grown(self, text: str) -> Events:
        """More text."""
        self._pieces.append(text)
        return [self._text_event("delta", text)]

    def closed(self, status: ItemStatus) -> Events:
        """The text, the part and the item are complete, or cut."""
        done = {"type": "response.output_item.done", "output_index": self.index, "item": self.item(status)}
        return [
            self._text_event("done", self.text),
            self._event("content_part.done") | {"part": self._part()},
            done,
        ]

    @property
    def text(self) -> str:
        """What has come so far."""
        return "".join(self._pieces)

    def item(self, status: ItemStatus) -> JsonObject:
        """The item as it stands."""
        content = [self._part()] if self._pieces else []
        item: JsonObject = {"id": self.id, "type": self.kind, "status": status, "content": content}
        rest: JsonObject = {"role": "assistant"} if self.kind == "message" else {"summary": []}
        return item | rest

    def _part(self) -> JsonObject:
        if self.kind == "message":
            return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}
        return {"type": "reasoning_text", "text": self.text}

    def _text_event(self, step: Literal["delta", "done"], text: str) -> JsonObject:
        name = "output_text" if self.kind == "message" else "reasoning_text"
        event = self._event(f"{name}.{step}") | {"delta" if step == "delta" else "text": text}
        return event | ({"logprobs": []} if self.kind == "message" else {})

    def _event(self, name: str) -> JsonObject:
        place = {"item_id": self.id, "output_index": self.index, "content_index": 0}
        return {"type": f"response.{name}", **place}


class Transcript:
    """One turn's events as response events without their numbers, and the response as it stands."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._identity = identity
        self._items: list[JsonObject] = []
        self._texts: list[str] = []
        self._open: _Texts | None = None
        self.response = self._response("in_progress")
        """The response as the last lifecycle event carried it."""

    def begin(self) -> Events:
        """The response is made and under way."""
        return [
            {"type": f"response.{step}", "response": self.response} for step in ("created", "in_progress")
        ]

    def event(self, event: TurnEvent) -> Events:
        """What one event of the turn means."""
        match event:
            case ReasoningDelta(text):
                return self._grow("reasoning", text) if self._ask.include_reasoning is not False else []
            case ContentDelta(text):
                return self._grow("message", text)
            case NumberedCall():
                return [*self._close("completed"), *self._call(event)]
            case _:
                return self._end(event)

    def fail(self, error: ErrorBody) -> Events:
        """The turn broke off: what there is stands, the open item as incomplete and unannounced."""
        self._close("incomplete")
        failure = {"code": "server_error", "message": error.message}
        self.response = self._response("failed") | {"error": failure}
        return [{"type": "response.failed", "response": self.response}]

    def _grow(self, kind: Literal["message", "reasoning"], text: str) -> Events:
        events: Events = []
        if self._open is None or self._open.kind != kind:
            events += self._close("completed")
            self._open = _Texts(kind, self._identity.key, len(self._items))
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
        item: JsonObject = {"id": f"fc_{self._identity.key}{index:04x}", "type": "function_call"}
        item |= {"call_id": call.id, "name": call.name}
        done = item | {"arguments": call.arguments, "status": "completed"}
        self._items.append(done)
        arguments = "response.function_call_arguments"
        place: JsonObject = {"item_id": item["id"], "output_index": index}
        return [
            {
                "type": "response.output_item.added",
                "output_index": index,
                "item": item | {"arguments": "", "status": "in_progress"},
            },
            {"type": f"{arguments}.delta", **place, "delta": call.arguments},
            {"type": f"{arguments}.done", **place, "arguments": call.arguments, "name": call.name},
            {"type": "response.output_item.done", "output_index": index, "item": done},
        ]

    def _end(self, done: Done) -> Events:
        cut = done.finish == "length"
        events = self._close("incomplete" if cut else "completed")
        status: Literal["incomplete", "completed"] = "incomplete" if cut else "completed"
        details = {"reason": "max_output_tokens"} if cut else None
        self.response = self._response(status) | {"incomplete_details": details, "usage": _usage(done.usage)}
        return [*events, {"type": f"response.{status}", "response": self.response}]

    def _response(self, status: str) -> JsonObject:
        return {
            "id": f"resp_{self._identity.key}",
            "object": "response",
            "created_at": self._identity.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._identity.model,
            "output": list(self._items),
            "output_text": "".join(self._texts),
            "usage": None,
            **self._ask.echo,
        }


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ResponsesEncoder:
    """One turn's events as numbered frames, each named by its type."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._transcript = Transcript(ask, identity)
        self._sent = 0

    def opening(self) -> Sequence[Frame]:
        """response.created and response.in_progress."""
        return self._frames(self._transcript.begin())

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
            frames.append(Frame(event=str(event["type"]), data={**event, "sequence_number": self._sent}))
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
