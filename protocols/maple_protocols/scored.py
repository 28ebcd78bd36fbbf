"""Deltas with the log probabilities of their tokens: what a turn gives where a request asks for them."""

from __future__ import annotations

import attrs
from maple_plugins.events import ContentDelta, ReasoningDelta


@attrs.frozen(kw_only=True)
class TokenScore:
    """A token, and how likely the model found it. A delta's ``shown`` bytes joined are its text.

    ``shown`` are those of the token's bytes that the text has: fewer than all where a marker, a trimmed newline or a
    stop string took the others, and never none. ``logprob`` is a natural logarithm, None for the first token of an
    echoed prompt. ``top`` are the likeliest tokens in its place, likeliest first, and this one.
    """

    token: bytes
    shown: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...] = ()


@attrs.frozen
class ScoredReasoning(ReasoningDelta):
    """A ReasoningDelta with the scores of the tokens whose first byte is in it."""

    scores: tuple[TokenScore, ...] = ()


@attrs.frozen
class ScoredContent(ContentDelta):
    """A ContentDelta with the scores of the tokens whose first byte is in it."""

    scores: tuple[TokenScore, ...] = ()


def scores_of(delta: ReasoningDelta | ContentDelta) -> tuple[TokenScore, ...]:
    """The scores that a delta carries, if any."""
    return delta.scores if isinstance(delta, ScoredReasoning | ScoredContent) else ()
