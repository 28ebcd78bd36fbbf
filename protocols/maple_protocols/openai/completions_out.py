"""POST /v1/completions, outwards: chunks, and the whole answer folded from the same events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maple_plugins.events import ContentDelta

from maple_protocols.adapter import Done, FinishReason, Frame, Identity, JsonObject, OfChoice, TurnEvent
from maple_protocols.answers import as_json
from maple_protocols.ask import Ask
from maple_protocols.errors import ErrorBody
from maple_protocols.openai.chat_out import DONE, heading, token_usage
from maple_protocols.openai.chat_tables import TextChoice, TextCompletion
from maple_protocols.openai.logprobs import TextLogprobs, TextScores
from maple_protocols.scored import scores_of
from maple_protocols.timings import Progress


class CompletionEncoder:
    """One turn's events as ``text_completion`` chunks."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._heading = heading("cmpl", identity)
        self._scores = [TextScores() for _ in range(ask.answers)]

    def opening(self) -> Sequence[Frame]:
        """Nothing: the first chunk is the first text."""
        return ()

    def event(self, event: TurnEvent | OfChoice) -> Sequence[Frame]:
        """One chunk a text; for Done the finish chunk, and at the end the usage chunk if it was asked for."""
        if isinstance(event, OfChoice):
            return (self._of_choice(event.event, event.index),)
        own = () if self._ask.answers > 1 else (self._of_choice(event, 0),)
        if not (isinstance(event, Done) and self._ask.include_usage):
            return own
        return (*own, self._chunk(usage=token_usage(event.usage)))

    def progress(self, progress: Progress) -> Sequence[Frame]:
        """A chunk without text."""
        return (self._chunk(_choice(0, ""), prompt_progress=progress),)

    def failure(self, error: ErrorBody) -> Sequence[Frame]:
        """The error event; no finish chunk follows it."""
        return (Frame(data=error.as_wire()),)

    def closing(self) -> Sequence[Frame]:
        """``[DONE]``."""
        return (DONE,)

    def _of_choice(self, event: TurnEvent, index: int) -> Frame:
        if isinstance(event, Done):
            timings = event.timings if self._ask.timings else None
            return self._chunk(_choice(index, "", event.finish), timings=timings)
        delta = _raw_text(event)
        logprobs = None if self._ask.scores is None else self._scores[index].of(scores_of(delta))
        return self._chunk(_choice(index, delta.text, logprobs=logprobs))

    def _chunk(self, *choices: TextChoice, **facts: Any) -> Frame:
        chunk = TextCompletion(object="text_completion", choices=choices, **facts, **self._heading)
        return Frame(data=as_json(chunk))


class CompletionFold:
    """One turn's events as one ``text_completion``."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._heading = heading("cmpl", identity)
        self._deltas: list[list[ContentDelta]] = [[] for _ in range(ask.answers)]
        self._choices: dict[int, TextChoice] = {}
        self._answer: JsonObject = {}

    def event(self, event: TurnEvent | OfChoice) -> None:
        """Take the next event of the turn."""
        if isinstance(event, OfChoice):
            self._take(event.event, event.index)
            return
        if self._ask.answers == 1:
            self._take(event, 0)
        if isinstance(event, Done):
            answer = TextCompletion(
                object="text_completion",
                choices=tuple(self._choices[index] for index in range(self._ask.answers)),
                usage=token_usage(event.usage),
                timings=event.timings if self._ask.timings else None,
                **self._heading,
            )
            self._answer = as_json(answer)

    def body(self) -> JsonObject:
        """The answer."""
        return self._answer

    def _take(self, event: TurnEvent, index: int) -> None:
        deltas = self._deltas[index]
        if isinstance(event, Done):
            text = "".join(delta.text for delta in deltas)
            self._choices[index] = _choice(index, text, event.finish, self._logprobs(deltas))
        else:
            deltas.append(_raw_text(event))

    def _logprobs(self, deltas: Sequence[ContentDelta]) -> TextLogprobs | None:
        if self._ask.scores is None:
            return None
        return TextScores().of(score for delta in deltas for score in scores_of(delta))


def _choice(
    index: int, piece: str, finish: FinishReason | None = None, logprobs: TextLogprobs | None = None
) -> TextChoice:
    return TextChoice(index=index, text=piece, logprobs=logprobs, finish_reason=finish)


def _raw_text(event: TurnEvent) -> ContentDelta:
    """An event, which is text. A raw prompt's turn runs no parser, so that there is no other kind of event."""
    if not isinstance(event, ContentDelta):
        raise TypeError(f"a raw prompt's turn gave {type(event).__name__}")
    return event
