"""Fields that several OpenAI routes share: each rule and its wording is here once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import attrs

from maple_protocols.adapter import Policy
from maple_protocols.ask import SamplingWish
from maple_protocols.openai.shapes import (
    NO_LIMIT,
    ChoiceCount,
    LogitBias,
    LogprobCount,
    ServedRange,
    ServedSwitch,
    StopIds,
    Stops,
    TokenLimit,
)
from maple_protocols.reading import drop, is_extended
from maple_protocols.rules import (
    Doc,
    Inert,
    Length,
    Misfit,
    Pattern,
    Range,
)
from maple_protocols.strict import Check, read

ANY_SEED = -1
"""Clients' word for "some seed or other"."""
SESSION_ID = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
SESSION_ID_WORDS = "1 to 128 letters, digits, dots, hyphens and underscores, not starting with a dot"


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
EchoedMaxTokens = Annotated[
    int | None,
    TokenLimit(least=0),
    Doc("Lowered to the server's limit and to the room that is left; 0 beside echo alone."),
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
Logprobs = Annotated[bool, ServedSwitch(), Doc("Tell every token's log probability; at the extended level.")]
TopLogprobs = Annotated[
    int | None,
    LogprobCount(0, most=20),
    Doc("Tell so many of the likeliest tokens beside each; with logprobs alone."),
]
TextLogprobs = Annotated[
    int | None,
    LogprobCount(False, most=5),
    Doc("Tell every token's log probability, and so many of the likeliest; at the extended level."),
]
NoTopLogprobs = Annotated[
    object, LogprobCount(0, most=0, served=False), Doc("Log probabilities are not given.")
]
One = Annotated[Literal[1] | None, Doc("One choice a request.")]
Choices = Annotated[
    int | None, ChoiceCount(), Doc("How many answers; at the extended level up to 8, of one prefill.")
]
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
