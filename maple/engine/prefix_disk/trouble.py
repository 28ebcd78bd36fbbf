"""A disk that cannot be used: told once, then left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import structlog

log = structlog.get_logger(__name__)

REST = 60.0
"""Seconds until it is tried again."""

Work = Literal["read", "write"]


class Trouble:
    """What of the disk's work fails. One warning for all of it, and the next once everything has worked again.

    Any thread may tell or ask.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[Work, float] = {}

    def rests(self, work: Work) -> bool:
        """Whether such work is better not tried now."""
        return self._clock() < self._until.get(work, 0.0)

    def arise(self, work: Work, reason: str) -> None:
        """It failed, or took too long."""
        told, self._until[work] = bool(self._until), self._clock() + REST
        if not told:
            log.warning("prefixes.disk_unusable", work=work, reason=reason, retry_seconds=REST)

    def over(self, work: Work) -> None:
        """It worked."""
        if self._until and self._until.pop(work, None) is not None and not self._until:
            log.info("prefixes.disk_usable")
