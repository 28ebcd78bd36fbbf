"""How far a load is, from the thread that loads to whoever asks."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Literal

import attrs

Phase = Literal["download", "packing", "load"]
_LONGEST_WAIT = 3600


@attrs.frozen(kw_only=True)
class Loading:
    """What a load is at, and how many of the phase's bytes are through."""

    phase: Phase
    done: int
    total: int


class LoadingGauge:
    """Set by any thread that loads, read by any. ``clock`` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = Loading(phase="load", done=0, total=0)
        self._began = clock()

    @property
    def now(self) -> Loading:
        """The phase; the first is a load of nothing yet."""
        return self._now

    @property
    def seconds_left(self) -> int | None:
        """Whole seconds until the phase ends, at its rate so far, from 1 to an hour; None before there is a rate."""
        now, spent = self._now, self._clock() - self._began
        if not now.done or spent <= 0:
            return None
        return max(1, min(_LONGEST_WAIT, math.ceil((now.total - now.done) * spent / now.done)))

    def report(self, phase: Phase, done: int, total: int) -> None:
        """So many of the phase's bytes are through."""
        with self._lock:
            if self._now.phase != phase or done < self._now.done:
                self._began = self._clock()
            self._now = Loading(phase=phase, done=done, total=total)
