"""How long the engine's thread takes for its steps: written by that thread, read by any."""

from __future__ import annotations

import bisect
import contextlib
import threading
import time
from collections.abc import Iterator

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Upper bounds in seconds; a step may take longer."""


class StepClock:
    """Counts of steps by duration, and since when the current one runs (``time.monotonic``; None between steps)."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.running: tuple[int, float] | None = None
        """The thread's ident and when the step began."""

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Time one step, on the thread that does it."""
        began = time.monotonic()
        self.running = threading.get_ident(), began
        try:
            yield
        finally:
            took = time.monotonic() - began
            self.running = None
            self.counts[bisect.bisect_left(BUCKETS, took)] += 1
            self.seconds += took
