"""POST /v1/completions: the raw prompt, no template, no parsing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import attrs
from maple_plugins.events import ContentDelta
from typing_extensions import override

from maple_protocols.adapter import (
    Done,
    Encoder,
    FinishReason,
    Fold,
    Frame,
    Identity,
    JsonObject,
    Policy,
    TurnEvent,
)
from maple_protocols.answers import as_json
from maple_protocols.ask import Ask, RawIds, RawText
from maple_protocols.errors import ErrorBody
from maple_protocols.openai import fields, forms
from maple_protocols.openai.chat_out import DONE, heading, token_usage
from maple_protocols.openai.chat_tables import TextChoice, TextCompletion
from maple_protocols.openai.logprobs import TextLogprobs, TextScores
from maple_protocols.reading import reading
from maple_protocols.rules import Doc, Misfit, Schema, Shape, text
from maple_protocols.scored import scores_of
from maple_protocols.strict import Check, ignored, structure
from maple_protocols.timings import Progress


@attrs.frozen
class PromptShape(Shape):
    """One prompt: a string or token ids, bare or as the only item of a list."""

    @override
    def structure(self, value: object) -> RawText | RawIds:
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
            value = value[0]
        if isinstance(value, list):
            return RawIds(self._ids(value))
        if not isinstance(value, str):
            raise Misfit("must be one string or one list of token ids")
        if not value.strip():
            raise Misfit("must not be blank")
        return RawText(text(value))

    @staticmethod
    def _ids(value: list[object]) -> tuple[int, ...]:
        if not value:
            raise Misfit("must not be empty")
        ids = tuple(item for item in value if type(item) is int)
        if len(ids) != len(value):
            raise Misfit("must be one string or one list of token ids")
        return ids

    @override
    def schema(self) -> Schema:
        string: Schema = {"type": "string", "minLength": 1}
        ids: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
        alone: Schema = {"type": "array", "items": {"anyOf": [string, ids]}, "minItems": 1, "maxItems": 1}
        return {"anyOf": [string, ids, alone]}


@attrs.frozen(kw_only=True)
class CompletionRequest:
    """The body of POST /v1/completions, its fields in the order in which they are checked."""

    model: fields.Model = None
    prompt: Annotated[RawText | RawIds, PromptShape(), Doc("Goes to the model untouched.")]
    stream: fields.Stream = False
    stream_options: fields.Streaming = None
    stop: fields.Stop = ()
    seed: fields.Seed = None
    max_completion_tokens: fields.MaxTokens = None
    max_tokens: fields.MaxTokens = None
    temperature: fields.Temperature = None
    top_p: fields.TopP = None
    top_k: fields.TopK = None
    repetition_penalty: fields.RepetitionPenalty = None
    presence_penalty: fields.Penalty = None
    frequency_penalty: fields.Penalty = None
    session_id: fields.SessionId = None
    user: fields.Unused = None
    logit_bias: fields.Bias = ()
    echo: Annotated[Literal[False] | None, Doc("The prompt is not repeated.")] = None
    suffix: Annotated[Literal[""] | None, Doc("Text is not inserted.")] = None
    logprobs: fields.TextLogprobs = None
    n: fields.One = None
    best_of: fields.One = None
    min_p: fields.MinP = None
    min_tokens: fields.MinTokens = None
    stop_token_ids: fields.StopTokenIds = ()
    ignore_eos: fields.IgnoreEos = False
    return_progress: fields.ReturnProgress = False
    timings: fields.WithTimings = None
    structured_outputs: forms.StructuredOutputs = None
    continue_final_message: Annotated[bool, Doc("A raw prompt always goes on.")] = False


def completion_ask(body: Mapping[str, object], policy: Policy, *, refuse_unknown: bool) -> Ask:
    """The Ask that ``body`` spells. Raises InvalidField."""
    checks: dict[str, Check] = {
        "prompt": _vocabulary_check(policy.vocabulary),
        "logit_bias": fields.bias_check(policy),
        "min_tokens": fields.check_least,
    }
    with reading(extended=policy.extended) as notes:
        request = structure(CompletionRequest, body, refuse_unknown=refuse_unknown, checks=checks)
        return Ask(
            prompt=request.prompt,
            model=request.model,
            sampling=fields.sampling(request),
            max_tokens=fields.token_limit(request.max_completion_tokens, request.max_tokens),
            stop=request.stop,
            stream=request.stream,
            include_usage=fields.wants_usage(request.stream, request.stream_options),
            progress=request.return_progress and request.stream,
            timings=fields.shows_timings(request.timings, policy),
            session_id=fields.session(request.session_id, policy),
            form=request.structured_outputs,
            scores=request.logprobs,
            ignored=(*ignored(CompletionRequest, body), *notes.dropped),
        )


def _vocabulary_check(size: int) -> Check:
    def check(prompt: RawText | RawIds, _: Mapping[str, Any]) -> None:
        if isinstance(prompt, RawIds) and not (min(prompt.ids) >= 0 and max(prompt.ids) < size):
            raise Misfit(f"must hold token ids from 0 to {size - 1}")

    return check


class CompletionEncoder:
    """One turn's events as ``text_completion`` chunks."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._heading = heading("cmpl", identity)
        self._scores = TextScores()

    def opening(self) -> Sequence[Frame]:
        """Nothing: the first chunk is the first text."""
        return ()

    def event(self, event: TurnEvent) -> Sequence[Frame]:
        """One chunk a text; for Done the finish chunk, and the usage chunk if it was asked for."""
        if not isinstance(event, Done):
            delta = _raw_text(event)
            logprobs = None if self._ask.scores is None else self._scores.of(scores_of(delta))
            return (self._chunk(_choice(delta.text, logprobs=logprobs)),)
        finish = self._chunk(_choice("", event.finish), timings=event.timings if self._ask.timings else None)
        return (finish, self._chunk(usage=token_usage(event.usage))) if self._ask.include_usage else (finish,)

    def progress(self, progress: Progress) -> Sequence[Frame]:
        """A chunk without text."""
        return (self._chunk(_choice(""), prompt_progress=progress),)

    def failure(self, error: ErrorBody) -> Sequence[Frame]:
        """The error event; no finish chunk follows it."""
        return (Frame(data=error.as_wire()),)

    def closing(self) -> Sequence[Frame]:
        """``[DONE]``."""
        return (DONE,)

    def _chunk(self, *choices: TextChoice, **facts: Any) -> Frame:
        chunk = TextCompletion(object="text_completion", choices=choices, **facts, **self._heading)
        return Frame(data=as_json(chunk))


class CompletionFold:
    """One turn's events as one ``text_completion``."""

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._heading = heading("cmpl", identity)
        self._deltas: list[ContentDelta] = []
        self._answer: JsonObject = {}

    def event(self, event: TurnEvent) -> None:
        """Take the next event of the turn."""
        if not isinstance(event, Done):
            self._deltas.append(_raw_text(event))
            return
        text = "".join(delta.text for delta in self._deltas)
        answer = TextCompletion(
            object="text_completion",
            choices=(_choice(text, event.finish, self._logprobs()),),
            usage=token_usage(event.usage),
            timings=event.timings if self._ask.timings else None,
            **self._heading,
        )
        self._answer = as_json(answer)

    def body(self) -> JsonObject:
        """The answer."""
        return self._answer

    def _logprobs(self) -> TextLogprobs | None:
        if self._ask.scores is None:
            return None
        return TextScores().of(score for delta in self._deltas for score in scores_of(delta))


def _choice(
    piece: str, finish: FinishReason | None = None, logprobs: TextLogprobs | None = None
) -> TextChoice:
    return TextChoice(index=0, text=piece, logprobs=logprobs, finish_reason=finish)


def _raw_text(event: TurnEvent) -> ContentDelta:
    """An event, which is text. A raw prompt's turn runs no parser, so that there is no other kind of event."""
    if not isinstance(event, ContentDelta):
        raise TypeError(f"a raw prompt's turn gave {type(event).__name__}")
    return event


class CompletionsAdapter:
    """OpenAI's legacy completions."""

    path: ClassVar[str] = "/v1/completions"
    prompt_param: ClassVar[str] = "prompt"
    request: ClassVar[type] = CompletionRequest
    closed: ClassVar[bool] = False
    counted: ClassVar[str | None] = None
    answers: ClassVar[Mapping[str, type]] = {"whole": TextCompletion, "event": TextCompletion}

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly, in the field order of CompletionRequest. Raises InvalidField."""
        return completion_ask(body, policy, refuse_unknown=policy.refuses_unknown(closed=self.closed))

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """Chunks for one turn."""
        return CompletionEncoder(ask, identity)

    def fold(self, ask: Ask, identity: Identity) -> Fold:
        """The whole answer of one turn."""
        return CompletionFold(ask, identity)
