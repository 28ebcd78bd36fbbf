"""POST /v1/chat/completions, outwards: chunks, and the whole answer folded from the same events."""

from __future__ import annotations

from collections.abc import Sequence

from maple_plugins.events import ContentDelta, ReasoningDelta

from maple_protocols.adapter import (
    FinishReason,
    Frame,
    Identity,
    JsonObject,
    NumberedCall,
    TurnEvent,
    Usage,
)
from maple_protocols.ask import Ask
from maple_protocols.errors import ErrorBody

DONE = Frame(data="[DONE]")


def usage_body(usage: Usage) -> JsonObject:
    """The counts as chat and completions give them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def envelope(prefix: str, kind: str, identity: Identity) -> JsonObject:
    """What every chunk and every whole answer of one turn begins with."""
    return {
        "id": f"{prefix}-{identity.key}",
        "object": kind,
        "created": identity.created,
        "model": identity.model,
    }


def ending(finish: Frame, usage: Usage, head: JsonObject, ask: Ask) -> Sequence[Frame]:
    """The finish chunk, and the usage chunk if it was asked for."""
    if not ask.include_usage:
        return (finish,)
    return finish, Frame(data={**head, "choices": [], "usage": usage_body(usage)})


def call_body(call: NumberedCall) -> JsonObject:
    """One call as ``message.tool_calls`` holds it."""
    function: JsonObject = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


class ChatEncoder:
    """One turn's events as ``chat.completion.chunk`` frames."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._envelope = envelope("chatcmpl", "chat.completion.chunk", identity)

    def opening(self) -> Sequence[Frame]:
        """The role chunk."""
        return (self._chunk({"role": "assistant", "content": ""}),)

    def event(self, event: TurnEvent) -> Sequence[Frame]:
        """One delta an event; for Done the finish chunk, and the usage chunk if it was asked for."""
        match event:
            case ReasoningDelta(text):
                shown = self._ask.include_reasoning is not False
                return (self._chunk({"reasoning_content": text}),) if shown else ()
            case ContentDelta(text):
                return (self._chunk({"content": text}),)
            case NumberedCall():
                return (self._chunk({"tool_calls": [{"index": event.index, **call_body(event)}]}),)
            case _:
                finish = self._chunk({}, event.finish)
                return ending(finish, event.usage, self._envelope, self._ask)

    def failure(self, error: ErrorBody) -> Sequence[Frame]:
        """The error event; no finish chunk follows it."""
        return (Frame(data=error.as_wire()),)

    def closing(self) -> Sequence[Frame]:
        """``[DONE]``."""
        return (DONE,)

    def _chunk(self, delta: JsonObject, finish: FinishReason | None = None) -> Frame:
        choice: JsonObject = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return Frame(data={**self._envelope, "choices": [choice]})


class ChatFold:
    """One turn's events as one ``chat.completion``."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._envelope = envelope("chatcmpl", "chat.completion", identity)
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[JsonObject] = []
        self._end: JsonObject = {}

    def event(self, event: TurnEvent) -> None:
        """Take the next event of the turn."""
        match event:
            case ReasoningDelta(text):
                self._reasoning.append(text)
            case ContentDelta(text):
                self._content.append(text)
            case NumberedCall():
                self._calls.append(call_body(event))
            case _:
                choice: JsonObject = {"index": 0, "message": self._message()}
                choice |= {"logprobs": None, "finish_reason": event.finish}
                self._end = {"choices": [choice], "usage": usage_body(event.usage)}

    def body(self) -> JsonObject:
        """The answer."""
        return self._envelope | self._end

    def _message(self) -> JsonObject:
        nothing = None if self._calls else ""
        message: JsonObject = {"role": "assistant", "content": "".join(self._content) or nothing}
        if self._reasoning and self._ask.include_reasoning is not False:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        return message
