"""POST /v1/messages, outwards: blocks, their events, and the whole message. Both come from one Transcript."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs
from maple_plugins.events import ContentDelta, ReasoningDelta

from maple_protocols.adapter import Done, Frame, Identity, JsonObject, NumberedCall, TurnEvent, Usage
from maple_protocols.anthropic.errors import type_of
from maple_protocols.ask import Ask
from maple_protocols.errors import ErrorBody
from maple_protocols.timings import Progress

Events = list[JsonObject]
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Transcript:
    """One turn's events as Anthropic's, and the message as it stands."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._identity = identity
        self._content: list[dict[str, Any]] = []
        self._open = ""
        self._thought: list[str] = []

    def begin(self, progress: Progress) -> Events:
        """The message without anything in it; the counts of its prompt are known."""
        usage = Usage(prompt_tokens=progress.total, completion_tokens=0, cached_tokens=progress.cached)
        return [{"type": "message_start", "message": self._message([], None, None, usage)}]

    def event(self, event: TurnEvent) -> Events:
        """What one event of the turn means."""
        match event:
            case ReasoningDelta(text):
                return self._think(text)
            case ContentDelta(text):
                return self._say(text)
            case NumberedCall():
                return [*self._close(), *self._call(event)]
            case _:
                return self._end(event)

    def whole(self, done: Done) -> JsonObject:
        """The message, once all is said."""
        return self._message(self._content, *_ending(done), done.usage)

    def _think(self, text: str) -> Events:
        begun = self._start("thinking", {"thinking": "", "signature": ""})
        self._thought.append(text)
        if self._ask.include_reasoning is False:
            return begun
        self._content[-1]["thinking"] += text
        return [*begun, self._delta({"type": "thinking_delta", "thinking": text})]

    def _say(self, text: str) -> Events:
        begun = self._start("text", {"text": ""})
        self._content[-1]["text"] += text
        return [*begun, self._delta({"type": "text_delta", "text": text})]

    def _call(self, call: NumberedCall) -> Events:
        empty: JsonObject = {"id": f"toolu_{call.id.removeprefix('call_')}", "name": call.name, "input": {}}
        begun = self._start("tool_use", empty)
        self._content[-1]["input"] = json.loads(call.arguments)
        return [
            *begun,
            self._delta({"type": "input_json_delta", "partial_json": call.arguments}),
            *self._close(),
        ]

    def _end(self, done: Done) -> Events:
        closed = self._close()
        if not self._content:
            closed = [*self._start("text", {"text": ""}), *self._close()]
        reason, stop = _ending(done)
        delta: JsonObject = {"stop_reason": reason, "stop_sequence": stop, "stop_details": None}
        last: JsonObject = {"type": "message_delta", "delta": delta, "usage": _usage(done.usage)}
        if self._ask.timings and done.timings is not None:
            last["timings"] = attrs.asdict(done.timings)
        return [*closed, last, {"type": "message_stop"}]

    def _start(self, kind: str, empty: JsonObject) -> Events:
        """Begin a block of ``kind``, unless one is open."""
        if self._open == kind:
            return []
        closed, self._open = self._close(), kind
        block: dict[str, Any] = {"type": kind, **empty}
        self._content.append(dict(block))
        return [*closed, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _close(self) -> Events:
        if not self._open:
            return []
        signed: Events = []
        if self._open == "thinking":
            signature = self._identity.sign("".join(self._thought))
            self._content[-1]["signature"] = signature
            self._thought.clear()
            signed = [self._delta({"type": "signature_delta", "signature": signature})]
        self._open = ""
        return [*signed, {"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    @property
    def _index(self) -> int:
        return len(self._content) - 1

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, stop: str | None, usage: Usage
    ) -> JsonObject:
        return {
            "id": f"msg_{self._identity.key}",
            "type": "message",
            "role": "assistant",
            "model": self._identity.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "stop_details": None,
            "usage": _usage(usage),
        }


def _ending(done: Done) -> tuple[str, str | None]:
    if done.stop is not None and done.finish == "stop":
        return "stop_sequence", done.stop
    return ("model_context_window_exceeded" if done.window else _REASONS[done.finish]), None


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "cache_creation": None,
        "server_tool_use": None,
        "service_tier": "standard",
    }


class MessagesEncoder:
    """One turn's events, each named by its type."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._transcript = Transcript(ask, identity)
        self._request_id = identity.request_id

    def opening(self) -> Sequence[Frame]:
        """Nothing: the message begins once its prompt's counts are known."""
        return ()

    def started(self, progress: Progress) -> Sequence[Frame]:
        """message_start."""
        return _frames(self._transcript.begin(progress))

    def ping(self, progress: Progress) -> Sequence[Frame]:
        """The event that means nothing."""
        return _frames([{"type": "ping"}])

    def progress(self, progress: Progress) -> Sequence[Frame]:
        """The same, with how far the prompt is."""
        return _frames([{"type": "ping", "prompt_progress": attrs.asdict(progress)}])

    def event(self, event: TurnEvent) -> Sequence[Frame]:
        """Block events; for Done the message's end."""
        return _frames(self._transcript.event(event))

    def failure(self, error: ErrorBody) -> Sequence[Frame]:
        """The error event, the last one."""
        told = {"type": type_of(error), "message": error.message}
        return _frames([{"type": "error", "error": told, "request_id": self._request_id}])

    def closing(self) -> Sequence[Frame]:
        """Nothing."""
        return ()


def _frames(events: Events) -> Sequence[Frame]:
    return tuple(Frame(event=str(event["type"]), data=event) for event in events)


class MessagesFold:
    """One turn's events as one message."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._transcript = Transcript(ask, identity)
        self._shows_timings = ask.timings
        self._answer: JsonObject = {}

    def event(self, event: TurnEvent) -> None:
        """Take the next event of the turn."""
        self._transcript.event(event)
        if isinstance(event, Done):
            self._answer = self._transcript.whole(event)
            if self._shows_timings and event.timings is not None:
                self._answer["timings"] = attrs.asdict(event.timings)

    def body(self) -> JsonObject:
        """The message."""
        return self._answer
