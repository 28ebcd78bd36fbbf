"""POST /v1/chat/completions, outwards: chunks, and the whole answer folded from the same events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maple_plugins.events import ContentDelta, ReasoningDelta

from maple_protocols.adapter import (
    Done,
    FinishReason,
    Frame,
    Identity,
    JsonObject,
    NumberedCall,
    OfChoice,
    TurnEvent,
    Usage,
)
from maple_protocols.answers import as_json
from maple_protocols.ask import Ask
from maple_protocols.errors import ErrorBody
from maple_protocols.openai.chat_tables import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChunkChoice,
    CompletionDetails,
    IndexedCall,
    MadeCall,
    MadeFunction,
    MessageDelta,
    PromptDetails,
    TokenUsage,
)
from maple_protocols.openai.logprobs import ChatLogprobs, chat_logprobs
from maple_protocols.timings import Progress

DONE = Frame(data="[DONE]")


def token_usage(usage: Usage) -> TokenUsage:
    """The counts as chat and completions give them."""
    return TokenUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionDetails(reasoning_tokens=usage.reasoning_tokens),
    )


def heading(prefix: str, identity: Identity) -> dict[str, Any]:
    """What every chunk and every whole answer of one turn begins with."""
    return {"id": f"{prefix}-{identity.key}", "created": identity.created, "model": identity.model}


class ChatEncoder:
    """One turn's events as ``chat.completion.chunk`` frames."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._heading = heading("chatcmpl", identity)

    def opening(self) -> Sequence[Frame]:
        """The role chunks of all choices."""
        role = MessageDelta(role="assistant", content="")
        return tuple(self._delta(role, index=index) for index in range(self._ask.answers))

    def event(self, event: TurnEvent | OfChoice) -> Sequence[Frame]:
        """One delta an event; for Done the finish chunk, and at the end the usage chunk if it was asked for."""
        if isinstance(event, OfChoice):
            return self._of_choice(event.event, event.index)
        own = () if self._ask.answers > 1 else self._of_choice(event, 0)
        if not (isinstance(event, Done) and self._ask.include_usage):
            return own
        return (*own, self._chunk((), usage=token_usage(event.usage)))

    def _of_choice(self, event: TurnEvent, index: int) -> Sequence[Frame]:
        match event:
            case ReasoningDelta(text):
                shown = shows_reasoning(self._ask)
                return (self._text(event, MessageDelta(reasoning_content=text), index),) if shown else ()
            case ContentDelta(text):
                return (self._text(event, MessageDelta(content=text), index),)
            case NumberedCall():
                call = IndexedCall(index=event.index, id=event.id, type="function", function=_function(event))
                return (self._delta(MessageDelta(tool_calls=(call,)), index=index),)
            case _:
                timings = event.timings if self._ask.timings else None
                return (self._delta(MessageDelta(), event.finish, index=index, timings=timings),)

    def progress(self, progress: Progress) -> Sequence[Frame]:
        """An empty delta, and how far the prompt is."""
        return (self._delta(MessageDelta(), prompt_progress=progress),)

    def failure(self, error: ErrorBody) -> Sequence[Frame]:
        """The error event; no finish chunk follows it."""
        return (Frame(data=error.as_wire()),)

    def closing(self) -> Sequence[Frame]:
        """``[DONE]``."""
        return (DONE,)

    def _text(self, event: ReasoningDelta | ContentDelta, delta: MessageDelta, index: int) -> Frame:
        logprobs = None if self._ask.scores is None else chat_logprobs((event,), reasoning=True)
        return self._chunk((ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=None),))

    def _delta(
        self, delta: MessageDelta, finish: FinishReason | None = None, *, index: int = 0, **facts: Any
    ) -> Frame:
        choice = ChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=finish)
        return self._chunk((choice,), **facts)

    def _chunk(self, choices: tuple[ChunkChoice, ...], **facts: Any) -> Frame:
        chunk = ChatCompletionChunk(object="chat.completion.chunk", choices=choices, **facts, **self._heading)
        return Frame(data=as_json(chunk))


class ChatFold:
    """One turn's events as one ``chat.completion``."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._heading = heading("chatcmpl", identity)
        self._choices = [_Choice(ask, index) for index in range(ask.answers)]
        self._answer: JsonObject = {}

    def event(self, event: TurnEvent | OfChoice) -> None:
        """Take the next event of the turn."""
        if isinstance(event, OfChoice):
            self._choices[event.index].event(event.event)
            return
        if self._ask.answers == 1:
            self._choices[0].event(event)
        if isinstance(event, Done):
            answer = ChatCompletion(
                object="chat.completion",
                choices=tuple(choice.whole() for choice in self._choices),
                usage=token_usage(event.usage),
                timings=event.timings if self._ask.timings else None,
                **self._heading,
            )
            self._answer = as_json(answer)

    def body(self) -> JsonObject:
        """The answer."""
        return self._answer


class _Choice:
    """One choice, as it grows."""

    def __init__(self, ask: Ask, index: int) -> None:
        self._ask = ask
        self._index = index
        self._deltas: list[ReasoningDelta | ContentDelta] = []
        self._calls: list[MadeCall] = []
        self._finish: FinishReason = "stop"

    def event(self, event: TurnEvent) -> None:
        match event:
            case ReasoningDelta() | ContentDelta():
                self._deltas.append(event)
            case NumberedCall():
                self._calls.append(MadeCall(id=event.id, type="function", function=_function(event)))
            case _:
                self._finish = event.finish

    def whole(self) -> ChatChoice:
        return ChatChoice(
            index=self._index,
            message=self._message(),
            logprobs=self._logprobs(),
            finish_reason=self._finish,
        )

    def _message(self) -> AnswerMessage:
        nothing = None if self._calls else ""
        shown = shows_reasoning(self._ask)
        return AnswerMessage(
            role="assistant",
            content=self._joined(ContentDelta) or nothing,
            reasoning_content=(self._joined(ReasoningDelta) or None) if shown else None,
            tool_calls=tuple(self._calls),
        )

    def _joined(self, kind: type[ReasoningDelta | ContentDelta]) -> str:
        return "".join(delta.text for delta in self._deltas if isinstance(delta, kind))

    def _logprobs(self) -> ChatLogprobs | None:
        if self._ask.scores is None:
            return None
        return chat_logprobs(self._deltas, reasoning=shows_reasoning(self._ask))


def shows_reasoning(ask: Ask) -> bool:
    """Whether the answer has the reasoning."""
    return ask.include_reasoning is not False


def _function(call: NumberedCall) -> MadeFunction:
    return MadeFunction(name=call.name, arguments=call.arguments)
