"""How far a load is, and two ways to show it: a bar on a terminal, log events elsewhere."""

from __future__ import annotations

import attrs

__all__ = ["LoadProgress"]


@attrs.frozen(kw_only=True)
class LoadProgress:
    """A point on the way through a checkpoint: source bytes and tensors read so far, and seconds since the start."""

    bytes_done: int
    bytes_total: int
    tensors_done: int
    tensors_total: int
    seconds: float
