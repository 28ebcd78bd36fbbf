"""The offline evaluation: greedy decoding of the held-out sets with the trainer's own forward pass."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from tokenizers import Tokenizer

from tools.sapling.conversation import Conversation, messages_before, prompt_text
from tools.sapling.generate import greedy
from tools.sapling.grading import Answer, is_right, split_text
from tools.sapling.heldout import heldout
from tools.sapling.model import Weights
from tools.sapling.shape import Shape
from tools.sapling.tokenizer import END_OF_TURN

REPLY_LIMIT = 400
_AT_ONCE = 50


@attrs.frozen(kw_only=True)
class Score:
    """A kind's result: how many were asked, right, and closed their think block in time; some wrong ones to
    look at.
    """

    asked: int
    right: int
    closed: int
    wrong: tuple[tuple[str, str], ...]

    @property
    def percent(self) -> float:
        """Right answers of a hundred."""
        return 100.0 * self.right / self.asked


def evaluate(
    weights: Weights, shape: Shape, tokenizer: Tokenizer, kind: str, count: int, *, thinking: bool = True
) -> Score:
    """Asks ``count`` held-out questions of one kind."""
    talks = heldout(kind, count, thinking=thinking)
    right = closed = 0
    wrong: list[tuple[str, str]] = []
    for talk, text in zip(talks, _replies(weights, shape, tokenizer, talks), strict=True):
        answer = answer_of(tokenizer, text, talk)
        closed += answer.closed
        if is_right(answer, talk.exchanges[-1].expect):
            right += 1
        else:
            wrong.append((str(talk.exchanges[-1].asked[-1]["content"]), text))
    return Score(asked=count, right=right, closed=closed, wrong=tuple(wrong))


def answer_of(tokenizer: Tokenizer, text: str, talk: Conversation) -> Answer:
    """The raw output as the server would split it."""
    return split_text(
        text,
        thinking=talk.thinking,
        count_tokens=lambda part: len(tokenizer.encode(part, add_special_tokens=False).ids),
    )


def _replies(
    weights: Weights, shape: Shape, tokenizer: Tokenizer, talks: list[Conversation]
) -> Iterator[str]:
    prompts = [
        tokenizer.encode(
            prompt_text(messages_before(talk, len(talk.exchanges) - 1), talk.tools, thinking=talk.thinking),
            add_special_tokens=False,
        ).ids
        for talk in talks
    ]
    for start in range(0, len(prompts), _AT_ONCE):
        for ids in greedy(weights, shape, prompts[start : start + _AT_ONCE], REPLY_LIMIT, END_OF_TURN):
            yield tokenizer.decode(ids, skip_special_tokens=False)
