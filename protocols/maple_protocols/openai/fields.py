"""Fields that several OpenAI routes share: each rule and its wording is here once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import attrs
from typing_extensions import override

from maple_protocols.adapter import Policy
from maple_protocols.ask import SamplingWish
from maple_protocols.reading import drop, is_extended, unserved
from maple_protocols.rules import (
    Doc,
    Inert,
    Length,
    Misfit,
    Pattern,
    Range,
    Rule,
    Schema,
    Shape,
    anything,
    each,
    integer,
    mapping,
    number,
    one_of,
    text,
)
from maple_protocols.strict import Check, read

NO_LIMIT = -1
"""Clients' word for "as many tokens as there is room for"."""
ANY_SEED = -1
"""Clients' word for "some seed or other"."""
MAX_STOPS = 16
MAX_STOP_IDS = 64
MAX_BIASES = 1024
MAX_STOP_LENGTH = 1000
SESSION_ID = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
SESSION_ID_WORDS = "1 to 128 letters, digits, dots, hyphens and underscores, not starting with a dot"


@attrs.frozen
class Stops(Shape):
    """A string or a list of them. Every refusal is blamed on the field itself, never on an index."""

    @override
    def structure(self, value: object) -> tuple[str, ...]:
        if isinstance(value, list) and len(value) > MAX_STOPS:
            raise Misfit(f"must hold at most {MAX_STOPS} strings")
        try:
            return each(value if isinstance(value, list) else [value], self._one)
        except Misfit as misfit:
            raise Misfit(misfit.must) from None

    @staticmethod
    def _one(value: object) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= MAX_STOP_LENGTH:
            raise Misfit(f"must be a string or a list of strings, each of 1 to {MAX_STOP_LENGTH} characters")
        return text(value)

    @override
    def schema(self) -> Schema:
        one: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
        return {"anyOf": [one, {"type": "array", "items": one, "maxItems": MAX_STOPS}]}


@attrs.frozen
class TokenLimit(Rule):
    """At least one token; at the extended level -1 leaves the limit to the server."""

    @override
    def check(self, value: int) -> None:
        if value == NO_LIMIT and not is_extended():
            raise unserved("must be at least 1")
        if value < 1 and value != NO_LIMIT:
            raise Misfit("must be at least 1")

    @override
    def schema(self) -> Schema:
        return {"minimum": 1}


@attrs.frozen
class ServedRange(Range):
    """A range that holds at the extended level; at the reference level the field takes any number, in vain."""

    @override
    def check(self, value: float) -> None:
        if is_extended():
            super().check(value)


@attrs.frozen
class LogitBias(Shape):
    """An object of ids to numbers from -100 to 100; at the reference level anything, in vain."""

    @override
    def structure(self, value: object) -> tuple[tuple[int, float], ...]:
        if not is_extended():
            anything(value)
            return ()
        given = mapping(value)
        if len(given) > MAX_BIASES:
            raise Misfit(f"must hold at most {MAX_BIASES} ids")
        return tuple((self._id(key), self._one(key, bias)) for key, bias in given.items())

    @staticmethod
    def _id(key: str) -> int:
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
            raise Misfit("must be a token id in decimal", key)
        return int(key)

    @staticmethod
    def _one(key: str, value: object) -> float:
        try:
            bias = number(value)
            Range(least=-100, most=100).check(bias)
        except Misfit as misfit:
            raise misfit.under(key) from None
        return bias

    @override
    def schema(self) -> Schema:
        bias: Schema = {"type": "number", "minimum": -100, "maximum": 100}
        return {"type": "object", "additionalProperties": bias, "maxProperties": MAX_BIASES}


@attrs.frozen
class StopIds(Shape):
    """A list of token ids."""

    @override
    def structure(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise Misfit("must be a list")
        if len(value) > MAX_STOP_IDS:
            raise Misfit(f"must hold at most {MAX_STOP_IDS} token ids")
        return each(value, self._one)

    @staticmethod
    def _one(value: object) -> int:
        token = integer(value)
        if token < 0:
            raise Misfit("must be a token id")
        return token

    @override
    def schema(self) -> Schema:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": MAX_STOP_IDS}


@attrs.frozen(eq=False)  # 0 and False are equal, and the caches of annotations would take one for the other
class NoLogprobs(Shape):
    """The one value that asks for no log probabilities."""

    none: Literal[False, 0]

    @override
    def structure(self, value: object) -> object:
        if type(value) is type(self.none) and value == self.none:
            return value
        raise Misfit(f"{one_of((self.none,))}: log probabilities are not given")

    @override
    def schema(self) -> Schema:
        return {"enum": [self.none]}


@attrs.frozen(kw_only=True)
class StreamOptions:
    """Wishes about a stream; ignored without one."""

    include_usage: Annotated[bool, Doc("End the stream with a chunk that holds the token counts.")] = False


Model = Annotated[
    str | None,
    Length(most=256),
    Doc("Echoed back. Must name the served model only where the server is strict about it."),
]
Temperature = Annotated[float | None, Range(least=0, most=2), Doc("0 is greedy.")]
TopP = Annotated[float | None, Range(above=0, most=1), Doc("Keep the likeliest ids that make up this much.")]
TopK = Annotated[
    int | None, Range(least=-1), Doc("Keep this many of the likeliest ids; -1 and 0 turn it off.")
]
MaxTokens = Annotated[
    int | None,
    TokenLimit(),
    Doc("For reasoning and answer together; lowered to the server's limit and to the room that is left."),
]
Stop = Annotated[
    tuple[str, ...],
    Stops(),
    Doc("Up to 16 strings that end the text, in the raw output with its reasoning; never sent."),
]
Seed = Annotated[int | None, Doc("The same seed and request give the same text; -1 is any seed.")]
Stream = Annotated[bool, Doc("Answer with server-sent events.")]
Streaming = Annotated[StreamOptions | None, Doc("Ignored without stream.")]
RepetitionPenalty = Annotated[
    float | None, Range(above=0), Doc("Over prompt and output ids; 1 turns it off.")
]
Penalty = Annotated[
    float | None,
    Inert(0, extended=True),
    ServedRange(least=-2, most=2),
    Doc("Over output ids, at the extended level; else accepted, without effect."),
]
Bias = Annotated[
    tuple[tuple[int, float], ...],
    LogitBias(),
    Inert({}, extended=True),
    Doc(
        "What is added to the logits of ids, at the extended level; -100 bans. Else accepted, without effect."
    ),
]
MinP = Annotated[
    float | None, Range(least=0, most=1), Doc("Keep ids at least so likely, measured by the likeliest.")
]
MinTokens = Annotated[int | None, Range(least=0), Doc("No end, and no stop string, before so many tokens.")]
StopTokenIds = Annotated[tuple[int, ...], StopIds(), Doc("Ids that end the answer; counted, not shown.")]
IgnoreEos = Annotated[bool, Doc("The model's own end is never sampled.")]
IncludeReasoning = Annotated[
    bool | None, Doc("false strips the reasoning from the answer; it is still made.")
]
SessionId = Annotated[
    str | None,
    Pattern(SESSION_ID, SESSION_ID_WORDS),
    Doc("Ties the request to a session's KV state; the X-Session-Id header is another way to say it."),
]
Logprobs = Annotated[object, NoLogprobs(False), Doc("Log probabilities are not given.")]
TopLogprobs = Annotated[object, NoLogprobs(0), Doc("Log probabilities are not given.")]
One = Annotated[Literal[1] | None, Doc("One choice a request.")]
ReturnProgress = Annotated[
    bool, Doc("In a stream, tell with prompt_progress how far the prompt is, at most twice a second.")
]
WithTimings = Annotated[
    bool | None,
    Doc("Add timings to the answer, in a stream at its end; true by default at the extended level."),
]
ContinueFinal = Annotated[
    bool, Doc("The last message, an assistant's, stays open: the answer is only what comes next in it.")
]
Unused = Annotated[object, Inert(), Doc("Accepted, without effect.")]


class _Sampled(Protocol):
    """A request with the sampling fields, whatever its other fields."""

    @property
    def temperature(self) -> float | None: ...

    @property
    def top_p(self) -> float | None: ...

    @property
    def top_k(self) -> int | None: ...

    @property
    def repetition_penalty(self) -> float | None: ...

    @property
    def seed(self) -> int | None: ...

    @property
    def presence_penalty(self) -> float | None: ...

    @property
    def frequency_penalty(self) -> float | None: ...

    @property
    def logit_bias(self) -> tuple[tuple[int, float], ...]: ...

    @property
    def min_p(self) -> float | None: ...

    @property
    def min_tokens(self) -> int | None: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    @property
    def ignore_eos(self) -> bool: ...


def sampling(request: _Sampled) -> SamplingWish:
    """The neutral form of the sampling fields."""
    penalty = request.repetition_penalty
    return SamplingWish(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=None if request.top_k is None else max(request.top_k, 0),
        repetition_penalty=1.0 if penalty is None else penalty,
        seed=None if request.seed == ANY_SEED else request.seed,
        presence=(request.presence_penalty or 0.0) if is_extended() else 0.0,
        frequency=(request.frequency_penalty or 0.0) if is_extended() else 0.0,
        bias=request.logit_bias,
        min_p=request.min_p or 0.0,
        min_tokens=request.min_tokens or 0,
        stop_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
    )


def bias_check(policy: Policy) -> Check:
    """Refuses ids that the model does not have."""

    def check(bias: tuple[tuple[int, float], ...], _: Mapping[str, Any]) -> None:
        for token, _value in bias:
            if token >= policy.vocabulary:
                raise Misfit(f"must be a token id from 0 to {policy.vocabulary - 1}", str(token))

    return check


def check_least(least: int, earlier: Mapping[str, Any]) -> None:
    """Refuses a least number of tokens above the most."""
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    most = token_limit(*map(earlier.get, names))
    if most is not None and least > most:
        raise Misfit(f"must be at most the {most} tokens that are wanted")


def session(own: str | None, policy: Policy) -> str | None:
    """The body's session, else the header's, which many clients use as a mere label: an unfit one is none."""
    if own is not None or policy.session_header is None:
        return own
    try:
        named: str = read(SessionId, policy.session_header)
    except Misfit:
        drop("X-Session-Id")
        return None
    return named


def token_limit(*wishes: int | None) -> int | None:
    """The first limit that is given; None where that leaves it to the server."""
    given = next((wish for wish in wishes if wish is not None), None)
    return None if given == NO_LIMIT else given


def wants_usage(stream: bool, options: StreamOptions | None) -> bool:
    """Whether the stream is to end with the token counts; without a stream the options are ignored."""
    return stream and options is not None and options.include_usage


def shows_timings(wish: bool | None, policy: Policy) -> bool:
    """The request's word on timings, else the level's."""
    return policy.extended if wish is None else wish


def shows_reasoning(wish: bool | None, policy: Policy) -> bool:
    """The request's word on reasoning, else the deployment's."""
    return policy.include_reasoning if wish is None else wish
