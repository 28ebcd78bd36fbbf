"""Log probabilities as chat and completions give them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from typing import Annotated

import attrs
from maple_plugins.events import ContentDelta, ReasoningDelta

from maple_protocols.rules import Doc
from maple_protocols.scored import TokenScore, scores_of


@attrs.frozen(kw_only=True)
class TopLogprob:
    """A token that might have come."""

    token: Annotated[str, Doc("Its text; bytes:\\xe2\\x80 where that is no text by itself.")]
    logprob: Annotated[float, Doc("Natural logarithm of its probability, at least -9999.")]
    bytes: tuple[int, ...]


@attrs.frozen(kw_only=True)
class TokenLogprob(TopLogprob):
    """A token of the text; ``bytes`` are those that the text has of it."""

    top_logprobs: Annotated[tuple[TopLogprob, ...], Doc("The likeliest, and the token itself.")]


@attrs.frozen(kw_only=True)
class ChatLogprobs:
    """Every token of a text with its log probability; the bytes joined are the text."""

    content: tuple[TokenLogprob, ...]
    reasoning: tuple[TokenLogprob, ...] | None
    refusal: None


@attrs.frozen(kw_only=True)
class TextLogprobs:
    """The same in lists, one item a token. What nothing came before has null."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float | None, ...]
    top_logprobs: Annotated[
        tuple[Mapping[str, float] | None, ...], Doc("Log probabilities of the likeliest, and of the token.")
    ]
    text_offset: Annotated[tuple[int, ...], Doc("Where each token begins in the text, in characters.")]


def chat_logprobs(deltas: Iterable[ReasoningDelta | ContentDelta], *, reasoning: bool) -> ChatLogprobs:
    """The scores of some deltas; ``reasoning`` says whether any of it is shown."""
    content: list[TokenLogprob] = []
    thought: list[TokenLogprob] = []
    for delta in deltas:
        found = content if isinstance(delta, ContentDelta) else thought
        found.extend(map(_chat_entry, scores_of(delta)))
    return ChatLogprobs(
        content=tuple(content), reasoning=tuple(thought) if thought and reasoning else None, refusal=None
    )


class TextScores:
    """The scores of one text, which comes delta after delta."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._characters = 0

    def of(self, scores: Iterable[TokenScore]) -> TextLogprobs:
        """The next scores; offsets count from the text's beginning."""
        scores = tuple(scores)
        return TextLogprobs(
            tokens=tuple(spelt(one.shown) for one in scores),
            token_logprobs=tuple(one.logprob for one in scores),
            top_logprobs=tuple(
                None if one.logprob is None else _by_token(one, one.logprob) for one in scores
            ),
            text_offset=tuple(map(self._offset, scores)),
        )

    def _offset(self, score: TokenScore) -> int:
        offset = self._characters
        self._characters += len(self._decoder.decode(score.shown))
        return offset


def spelt(token: bytes) -> str:
    """A token as text, or as OpenAI spells one that is part of a character."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _by_token(score: TokenScore, logprob: float) -> Mapping[str, float]:
    return {spelt(token): value for token, value in (*score.top, (score.token, logprob))}


def _chat_entry(score: TokenScore) -> TokenLogprob:
    return TokenLogprob(
        token=spelt(score.token),
        logprob=0.0 if score.logprob is None else score.logprob,
        bytes=tuple(score.shown),
        top_logprobs=tuple(
            TopLogprob(token=spelt(token), logprob=value, bytes=tuple(token)) for token, value in score.top
        ),
    )
