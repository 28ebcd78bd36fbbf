"""POST /v1/completions: the raw prompt, no template, no parsing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import attrs
from typing_extensions import override

from maple_protocols.adapter import Encoder, Fold, Identity, Policy
from maple_protocols.ask import Ask, RawIds, RawText
from maple_protocols.errors import InvalidField
from maple_protocols.openai import fields, forms
from maple_protocols.openai.chat_tables import TextCompletion
from maple_protocols.openai.completions_out import CompletionEncoder, CompletionFold
from maple_protocols.openai.shapes import ServedSwitch
from maple_protocols.reading import is_extended, reading, unserved
from maple_protocols.rules import Doc, Misfit, Schema, Shape, each, text
from maple_protocols.strict import Check, ignored, structure

MAX_PROMPTS = 16


@attrs.frozen
class PromptShape(Shape):
    """A prompt is a string or token ids, bare or in a list: of one, or at the extended level of several."""

    @override
    def structure(self, value: object) -> tuple[RawText | RawIds, ...]:
        if isinstance(value, list) and value and all(isinstance(one, str | list) for one in value):
            if len(value) == 1:
                return (self._one(value[0]),)
            if not is_extended():
                raise unserved("must be one string or one list of token ids")
            if len(value) > MAX_PROMPTS:
                raise Misfit(f"must hold at most {MAX_PROMPTS} prompts")
            return each(value, self._one)
        return (self._one(value),)

    def _one(self, value: object) -> RawText | RawIds:
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
        alone: Schema = {"type": "array", "items": {"anyOf": [string, ids]}, "minItems": 1}
        alone["maxItems"] = MAX_PROMPTS if is_extended() else 1
        return {"anyOf": [string, ids, alone]}


@attrs.frozen(kw_only=True)
class CompletionRequest:
    """The body of POST /v1/completions, its fields in the order in which they are checked."""

    model: fields.Model = None
    prompt: Annotated[
        tuple[RawText | RawIds, ...],
        PromptShape(),
        Doc("Goes to the model untouched. At the extended level up to 16, each answered by itself."),
    ]
    stream: fields.Stream = False
    stream_options: fields.Streaming = None
    stop: fields.Stop = ()
    seed: fields.Seed = None
    max_completion_tokens: fields.EchoedMaxTokens = None
    max_tokens: fields.EchoedMaxTokens = None
    temperature: fields.Temperature = None
    top_p: fields.TopP = None
    top_k: fields.TopK = None
    repetition_penalty: fields.RepetitionPenalty = None
    presence_penalty: fields.Penalty = None
    frequency_penalty: fields.Penalty = None
    session_id: fields.SessionId = None
    user: fields.Unused = None
    logit_bias: fields.Bias = ()
    echo: Annotated[
        bool,
        ServedSwitch(),
        Doc("Put the prompt in front, with its log probabilities; at the extended level."),
    ] = False
    suffix: Annotated[Literal[""] | None, Doc("Text is not inserted.")] = None
    logprobs: fields.TextLogprobs = None
    n: fields.Choices = None
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
        _check_limits(request)
        return Ask(
            prompt=request.prompt[0],
            further=request.prompt[1:],
            choices=request.n or 1,
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
            repeats_prompt=request.echo,
            ignored=(*ignored(CompletionRequest, body), *notes.dropped),
        )


def _check_limits(request: CompletionRequest) -> None:
    for name in ("max_completion_tokens", "max_tokens"):
        if getattr(request, name) == 0 and not request.echo:
            raise InvalidField(param=name, message=f"{name} must be at least 1")


def _vocabulary_check(size: int) -> Check:
    def check(prompts: tuple[RawText | RawIds, ...], _: Mapping[str, Any]) -> None:
        for prompt in prompts:
            if isinstance(prompt, RawIds) and not (min(prompt.ids) >= 0 and max(prompt.ids) < size):
                raise Misfit(f"must hold token ids from 0 to {size - 1}")

    return check


class CompletionsAdapter:
    """OpenAI's legacy completions."""

    path: ClassVar[str] = "/v1/completions"
    prompt_param: ClassVar[str] = "prompt"
    request: ClassVar[type] = CompletionRequest
    closed: ClassVar[bool] = False
    counted: ClassVar[str | None] = None
    controlled: ClassVar[str | None] = None
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
