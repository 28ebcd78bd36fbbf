"""Conversations as token ids with a flag for every id that is learnt."""

from __future__ import annotations

import random

from tokenizers import Tokenizer

from tools.sapling.conversation import Conversation, segments
from tools.sapling.mix import conversation
from tools.sapling.tokenizer import END_OF_TEXT

LONGEST = 1280


def encoded(tokenizer: Tokenizer, talk: Conversation) -> tuple[list[int], list[bool]]:
    """The ids of the whole text, and which of them are to be predicted."""
    ids: list[int] = []
    flags: list[bool] = []
    for text, learnt in segments(talk):
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        flags += [learnt] * len(piece)
    return ids, flags


def step_samples(
    tokenizer: Tokenizer, rng: random.Random, mix: dict[str, float], tokens: int
) -> list[tuple[list[int], list[bool]]]:
    """About as many fresh samples as fit into ``tokens`` tokens, long ones first, and one of nothing but padding for the rest."""
    drawn: list[tuple[list[int], list[bool]]] = []
    while sum(len(ids) for ids, _ in drawn) < tokens:
        sample = encoded(tokenizer, conversation(rng, mix))
        if len(sample[0]) <= min(LONGEST, tokens):
            drawn.append(sample)
    samples, room = [], tokens
    for sample in sorted(drawn, key=lambda sample: len(sample[0]), reverse=True):
        if len(sample[0]) <= room:
            samples.append(sample)
            room -= len(sample[0])
    return [*samples, ([END_OF_TEXT] * room, [False] * room)] if room else samples
