"""How far a load is, and two ways to show it: a bar on a terminal, log events elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import attrs
import structlog
from tqdm import tqdm

from maple.checkpoint.errors import LoadCancelled
from maple.checkpoint.shards import TensorInfo

_LOG_EVERY = 5.0  # seconds between two events of one load


@attrs.frozen(kw_only=True)
class LoadProgress:
    """A point on the way through a checkpoint: bytes and tensors read so far, and seconds since the start."""

    bytes_done: int
    bytes_total: int
    tensors_done: int
    tensors_total: int
    seconds: float


Phase = Literal["download", "packing", "load"]
LoadReport = Callable[[Phase, int, int], None]
"""Hears what a load is at, and how many of the phase's bytes are through, of how many; from any thread."""


def unheard(_phase: Phase, _done: int, _total: int) -> None:
    """A report that nobody wants."""


def told(
    progress: Callable[[LoadProgress], None], phase: Phase, report: LoadReport
) -> Callable[[LoadProgress], None]:
    """A ``progress`` whose bytes ``report`` hears of as well."""

    def tell(now: LoadProgress) -> None:
        progress(now)
        report(phase, now.bytes_done, now.bytes_total)

    return tell


class LoadTracker:
    """Counts tensors as they are read, reports each, and stops the load when the caller wants that."""

    def __init__(
        self,
        parts: Iterable[TensorInfo],
        report: Callable[[LoadProgress], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._pending = {part.name: part.nbytes for part in parts}
        self._bytes_total = self._bytes_left = sum(self._pending.values())
        self._tensors_total = len(self._pending)
        self._report = report
        self._cancelled = cancelled
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since the tracker was made."""
        return time.monotonic() - self._started

    def advance(self, part: TensorInfo) -> None:
        """Count ``part``, once however often it comes; raises ``LoadCancelled``."""
        if self._cancelled():
            raise LoadCancelled
        if part.name not in self._pending:
            return
        self._bytes_left -= self._pending.pop(part.name)
        self._report(
            LoadProgress(
                bytes_done=self._bytes_total - self._bytes_left,
                bytes_total=self._bytes_total,
                tensors_done=self._tensors_total - len(self._pending),
                tensors_total=self._tensors_total,
                seconds=self.seconds,
            )
        )


class ProgressBar:
    """One bar on a terminal, in bytes."""

    def __init__(self, stream: Any = None, words: str = "Loading Maple") -> None:
        self._stream = stream
        self._words = words
        self._bar: Any = None

    def __call__(self, progress: LoadProgress) -> None:
        """Move the bar; the last call of a load closes it."""
        if self._bar is None:
            self._bar = tqdm(
                desc=self._words,
                total=progress.bytes_total,
                unit="B",
                unit_scale=True,
                file=self._stream or sys.stderr,
            )
        self._bar.update(progress.bytes_done - self._bar.n)
        if progress.tensors_done == progress.tensors_total:
            self._bar.close()
            self._bar = None


class ProgressLog:
    """Log events, at most one every five seconds and one at the end."""

    def __init__(self, log: Any = None) -> None:
        self._log = log or structlog.get_logger(__name__)
        self._last = 0.0

    def __call__(self, progress: LoadProgress) -> None:
        """Log ``model.loading``, or ``model.read`` when all tensors are in."""
        finished = progress.tensors_done == progress.tensors_total
        if not finished and progress.seconds - self._last < _LOG_EVERY:
            return
        self._last = 0.0 if finished else progress.seconds
        self._log.info("model.read" if finished else "model.loading", **attrs.asdict(progress))


def progress_reporter(stream: Any = None, words: str = "Loading Maple") -> Callable[[LoadProgress], None]:
    """A bar headed ``words`` if ``stream`` (standard error) is a terminal, log events otherwise."""
    stream = stream or sys.stderr
    return ProgressBar(stream, words) if stream.isatty() else ProgressLog()
