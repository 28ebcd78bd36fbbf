"""Fields that several OpenAI routes share: each rule and its wording is here once."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

import attrs
from typing_extensions import override

from maple_protocols.adapter import Policy
from maple_protocols.ask import SamplingWish
from maple_protocols.errors import InvalidField
from maple_protocols.rules import Doc, Inert, Length, Misfit, Pattern, Range, Schema, Shape, each, text
from maple_protocols.strict import read

MAX_STOPS = 16
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
    Range(least=1),
    Doc("For reasoning and answer together; lowered to the server's limit and to the room that is left."),
]
Stop = Annotated[
    tuple[str, ...],
    Stops(),
    Doc("Up to 16 strings that end the text, in the raw output with its reasoning; never sent."),
]
Seed = Annotated[int | None, Doc("The same seed and request give the same text.")]
Stream = Annotated[bool, Doc("Answer with server-sent events.")]
Streaming = Annotated[StreamOptions | None, Doc("Ignored without stream.")]
RepetitionPenalty = Annotated[
    float | None, Range(above=0), Doc("Over prompt and output ids; 1 turns it off.")
]
Penalty = Annotated[float | None, Inert(0), Doc("Accepted and ignored.")]
IncludeReasoning = Annotated[
    bool | None, Doc("false strips the reasoning from the answer; it is still made.")
]
SessionId = Annotated[
    str | None,
    Pattern(SESSION_ID, SESSION_ID_WORDS),
    Doc("Ties the request to a session's KV state; the X-Session-Id header is another way to say it."),
]
One = Annotated[Literal[1] | None, Doc("One choice a request.")]
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


def sampling(request: _Sampled) -> SamplingWish:
    """The neutral form of the sampling fields."""
    penalty = request.repetition_penalty
    return SamplingWish(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=None if request.top_k is None else max(request.top_k, 0),
        repetition_penalty=1.0 if penalty is None else penalty,
        seed=request.seed,
    )


def session(own: str | None, policy: Policy, code: str | None = None) -> str | None:
    """The body's session, else the header's. Raises InvalidField for an unsafe header, used or not."""
    if policy.session_header is None:
        return own
    try:
        named: str = read(SessionId, policy.session_header)
    except Misfit as misfit:
        raise InvalidField(param="session_id", message=f"session_id {misfit.must}", code=code) from None
    return own or named


def wants_usage(stream: bool, options: StreamOptions | None) -> bool:
    """Whether the stream is to end with the token counts; without a stream the options are ignored."""
    return stream and options is not None and options.include_usage


def shows_reasoning(wish: bool | None, policy: Policy) -> bool:
    """The request's word on reasoning, else the deployment's."""
    return policy.include_reasoning if wish is None else wish
