"""Sequences that have a slot but no memory yet, or none any more: who is opened when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from maple.engine.errors import EngineError
from maple.engine.kv.cache import CacheHandle, Wait
from maple.engine.runner import Runner
from maple.engine.sequence import RunningSequence

Key = TypeVar("Key")

_MOST_OVERTAKEN = 8
"""So often may others pass a sequence that waits for memory: then all wait for it."""

_PATIENCE = 16
"""Steps after which memory is asked for again though none was given back: windows move."""


class Openings(Generic[Key]):
    """Opens sequences as memory allows: first in, first out within a key; another key's may pass for a while.

    What waits is looked up again only when something was ``freed``, for a lookup costs with the prompt's length.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        opened: Callable[[RunningSequence[Key], CacheHandle[Any]], None],
        failed: Callable[[RunningSequence[Key], EngineError | None], None],
    ) -> None:
        self._runner = runner
        self._opened = opened
        self._failed = failed
        self._waiting: dict[Key, RunningSequence[Key]] = {}
        self._pause = 0

    def add(self, sequence: RunningSequence[Key]) -> None:
        """It waits from now on; who came before others stays before them."""
        later = [one for one in self._waiting.values() if one.number > sequence.number]
        self._waiting[sequence.key] = sequence
        for one in later:
            self._waiting[one.key] = self._waiting.pop(one.key)
        self._pause = 0

    def discard(self, sequence: RunningSequence[Key]) -> None:
        """It has ended."""
        self._waiting.pop(sequence.key, None)

    def freed(self) -> None:
        """Memory was given back, or a prompt was computed that others may have waited for."""
        self._pause = 0

    def try_all(self) -> list[RunningSequence[Key]]:
        """Open what can be opened, and call back for each: those that begin to wait for memory."""
        if not self._waiting or self._pause:
            self._pause = max(0, self._pause - 1)
            return []
        parked = []
        blocked: list[RunningSequence[Key]] = []
        for sequence in list(self._waiting.values()):
            if any(one.job.owner == sequence.job.owner for one in blocked):
                continue
            if self._try(sequence) is Wait.MEMORY:
                blocked.append(sequence)
            elif sequence.cache is not None:
                for one in blocked:
                    one.overtaken += 1
            if any(one.overtaken >= _MOST_OVERTAKEN for one in blocked):
                break
        for sequence in self._waiting.values():
            if blocked and not sequence.parked and not sequence.opened:
                sequence.parked = True
                parked.append(sequence)
        self._pause = _PATIENCE if blocked else 0
        return parked

    def _try(self, sequence: RunningSequence[Key]) -> CacheHandle[Any] | Wait | None:
        try:
            found = self._runner.open(
                sequence.job.owner, sequence.ids, sequence.longest, reuse=not sequence.scores_prompt
            )
        except EngineError as error:
            self._failed(sequence, error)
            return None
        except Exception:
            self._failed(sequence, None)
            return None
        if isinstance(found, CacheHandle):
            del self._waiting[sequence.key]
            self._opened(sequence, found)
        return found
