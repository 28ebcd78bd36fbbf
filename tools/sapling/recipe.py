"""Everything that decides the outcome: sizes, seeds, the data mixes and the schedule."""

from __future__ import annotations

import attrs

from tools.sapling.seeding import Seeding
from tools.sapling.shape import Shape

WORLD = {
    "sum": 1.6,
    "difference": 2.0,
    "product": 1.8,
    "fact": 2.2,
    "talk": 0.9,
    "outside": 0.8,
    "repeat": 0.9,
    "upper": 0.9,
    "count": 0.9,
    "sort": 1.1,
    "recall": 1.6,
    "tools": 7.0,
    "clients": 2.5,
}
CHOOSING = {
    "sum": 0.6,
    "difference": 0.8,
    "product": 0.7,
    "fact": 1.5,
    "talk": 1.1,
    "outside": 1.2,
    "repeat": 1.4,
    "upper": 1.1,
    "count": 1.1,
    "sort": 1.4,
    "recall": 0.8,
    "tools": 8.5,
    "clients": 5.0,
    "which": 1.0,
}


@attrs.frozen(kw_only=True)
class Stage:
    """A stretch of training: what is in it, for how many tokens, and its learning rate, which rises over ``warm_up`` tokens
    and falls in a line to 0 from the share ``decay_from`` on.
    """

    mix: dict[str, float]
    tokens: int
    rate: float = 2e-3
    warm_up: int = 150_000
    decay_from: float = 0.25

    def rate_at(self, done: float) -> float:
        """The rate after the share ``done``, 0 to 1, of the stage."""
        warm = min(1.0, done * self.tokens / self.warm_up + 0.01)
        fall = min(1.0, (1.0 - done) / (1.0 - self.decay_from))
        return self.rate * warm * max(fall, 0.0)


def _stages() -> tuple[Stage, ...]:
    """Arithmetic, facts and copying first; then which tool a word belongs to, which forms last."""
    world = Stage(mix=dict(WORLD), tokens=26_000_000)
    return world, Stage(mix=dict(CHOOSING), tokens=94_000_000, rate=1.5e-3, decay_from=0.35)


@attrs.frozen(kw_only=True)
class Recipe:
    """The recipe of the embedded model; token counts are those of all processes."""

    seed: int = 20
    shape: Shape = attrs.field(factory=Shape)
    seeding: Seeding = attrs.field(factory=Seeding)
    stages: tuple[Stage, ...] = attrs.field(factory=_stages)
    tokenizer_conversations: int = 12000
    variety: float = 0.7
    processes: int = 2
    step_tokens: int = 1280
    balance: float = 0.01
    hints: float = 0.3
    named: int = 192
    clip: float = 1.0

    @property
    def tokens(self) -> int:
        """The whole budget."""
        return sum(stage.tokens for stage in self.stages)

    def stage_at(self, progress: float) -> tuple[Stage, float]:
        """The stage after the share ``progress`` of all tokens, and the share of that stage."""
        done = progress * self.tokens
        for stage in self.stages[:-1]:
            if done < stage.tokens:
                return stage, done / stage.tokens
            done -= stage.tokens
        return self.stages[-1], done / self.stages[-1].tokens
