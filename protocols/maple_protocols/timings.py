"""How far a turn is, and where its time went: in llama-server's words."""

from __future__ import annotations

from typing import Annotated, Literal

import attrs

from maple_protocols.rules import Doc


@attrs.frozen(kw_only=True)
class Progress:
    """How far a request without an answer yet is."""

    state: Literal["queued", "prefill"]
    position: Annotated[int, Doc("In the queue, from 1; 0 once it runs.")]
    total: Annotated[int, Doc("The prompt's tokens.")]
    cached: Annotated[int, Doc("Those of them whose state was reused.")]
    processed: Annotated[int, Doc("Those that are computed, reused ones included.")]
    time_ms: Annotated[int, Doc("Since the request was taken.")]


@attrs.frozen(kw_only=True)
class Timings:
    """Where the time went: tokens, milliseconds, and tokens a second."""

    queue_ms: Annotated[float, Doc("Waiting for a slot and for memory.")]
    cache_n: Annotated[int, Doc("The prompt's tokens whose state was reused.")]
    prompt_n: Annotated[int, Doc("Those that were computed.")]
    prompt_ms: float
    prompt_per_second: float
    predicted_n: Annotated[int, Doc("Tokens sampled, reasoning and the end included.")]
    predicted_ms: Annotated[float, Doc("From the first of them to the last.")]
    predicted_per_second: float
    draft_n: Annotated[int, Doc("Tokens that a draft proposed.")]
    draft_accepted_n: Annotated[int, Doc("Those of them that were sampled.")]
