"""What a step tells the event loop."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import attrs

from maple.engine.api import EngineError, Finish, Piece

__all__ = ["Delivery", "StepReport", "Totals"]

Key = TypeVar("Key", bound=Hashable)


@attrs.frozen(kw_only=True)
class Delivery(Generic[Key]):
    """What a step made for one sequence. Once it has ended, in whatever way, its slot is free."""

    key: Key
    items: Sequence[Piece | Finish] = ()
    error: EngineError | None = None
    ended: bool = False


@attrs.frozen(kw_only=True)
class StepReport(Generic[Key]):
    """What a step did; tokens are those of this step, ``kv_bytes`` what is held after it.

    ``broken``: the model fails again and again, and no further step should be tried.
    """

    deliveries: Sequence[Delivery[Key]]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    kv_bytes: int = 0
    broken: bool = False


@attrs.define
class Totals:
    """Tokens of all steps so far, and the bytes held after the last."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    kv_bytes: int = 0

    def add(self, report: StepReport[Key]) -> None:
        """Count a step."""
        self.prompt_tokens += report.prompt_tokens
        self.cached_tokens += report.cached_tokens
        self.generation_tokens += report.generation_tokens
        self.kv_bytes = report.kv_bytes
