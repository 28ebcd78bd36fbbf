"""Everything that decides the outcome: sizes, seeds, the data mix and the schedule."""

from __future__ import annotations

import attrs

from tools.sapling.seeding import Seeding
from tools.sapling.shape import Shape

MIX = {
    "sum": 2.4,
    "difference": 3.0,
    "product": 2.8,
    "fact": 2.0,
    "talk": 0.9,
    "outside": 0.8,
    "repeat": 0.7,
    "upper": 0.8,
    "count": 0.7,
    "sort": 0.8,
    "recall": 1.8,
    "tools": 8.5,
}
TOKENIZER_MIX = {
    "sum": 1.5,
    "difference": 1.8,
    "product": 1.8,
    "fact": 2.2,
    "talk": 0.6,
    "outside": 1.0,
    "repeat": 0.8,
    "upper": 0.7,
    "count": 0.5,
    "sort": 1.0,
    "recall": 1.8,
    "tools": 7.0,
}


@attrs.frozen(kw_only=True)
class Recipe:
    """The recipe of the embedded model; `tokens` is the whole budget over all processes."""

    seed: int = 20
    shape: Shape = attrs.field(factory=Shape)
    seeding: Seeding = attrs.field(factory=Seeding)
    mix: dict[str, float] = attrs.field(factory=lambda: dict(MIX))
    tokenizer_mix: dict[str, float] = attrs.field(factory=lambda: dict(TOKENIZER_MIX))
    tokenizer_conversations: int = 12000
    variety: float = 0.7
    processes: int = 2
    step_tokens: int = 1280
    tokens: int = 40_000_000
    rate: float = 2e-3
    warm_up: int = 60
    decay_from: float = 0.25
    balance: float = 0.01
    clip: float = 1.0
