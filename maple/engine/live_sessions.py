"""Which conversations have their keys and values in memory. The engine's thread alone uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from maple.engine.api import Job
from maple.engine.kv.cache import KvSnapshot, Wait
from maple.engine.runner import Runner

__all__ = ["LiveSessions"]

Key = tuple[str, str]
MOST = 4096
"""Sessions remembered: many may share one kept prefix, so memory for keys and values alone does not bound them."""


class LiveSessions:
    """Sessions by owner and id: the ids that each ended with, as long as the runner keeps something of them.

    ``running`` tells what a session's running sequence has computed; ``release`` makes such sequences go on
    without the session, and says whether there are any.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        running: Callable[[str, str], Sequence[int]],
        release: Callable[[str, str], bool],
    ) -> None:
        self._runner = runner
        self._running = running
        self._release = release
        self._ids: dict[Key, tuple[int, ...]] = {}
        self._evictions = runner.evictions

    def count(self) -> int:
        """Sessions of which something is kept."""
        if self._runner.evictions != self._evictions:
            self._evictions = self._runner.evictions
            self._ids = {key: ids for key, ids in self._ids.items() if self._runner.resident(key[0], ids)}
        return len(self._ids)

    def note(self, job: Job, computed: Sequence[int]) -> None:
        """A sequence has ended; if it belongs to a session, that goes on from here."""
        if job.session_id is None or not computed:
            return
        if self._runner.resident(job.owner, computed):
            self._set((job.owner, job.session_id), computed)

    def resident(self, owner: str, session_id: str) -> tuple[int, int]:
        """How many of the session's ids are in memory, and how many it has."""
        ids = self._ids_of(owner, session_id)
        return (self._runner.resident(owner, ids) if ids else 0), len(ids)

    def snapshot(self, owner: str, session_id: str) -> KvSnapshot | None:
        """A copy of what is in memory; None where nothing is."""
        ids = self._ids_of(owner, session_id)
        return self._runner.snapshot(owner, ids) if ids else None

    def restore(self, owner: str, session_id: str, snapshot: KvSnapshot) -> int | Wait:
        """Make a snapshot live: how many of its ids are in memory now. Raises SnapshotUnfit."""
        tokens = self._runner.restore(owner, snapshot)
        if isinstance(tokens, int) and tokens:
            self._set((owner, session_id), snapshot.ids[:tokens])
        return tokens

    def forget(self, owner: str, session_id: str) -> bool:
        """Drop the session and what is kept for it alone; whether there was one."""
        ran = self._release(owner, session_id)
        ids = self._ids.pop((owner, session_id), ())
        if ids:
            self._runner.forget(owner, ids)
        return ran or bool(ids)

    def _set(self, key: Key, ids: Sequence[int]) -> None:
        self._ids.pop(key, None)
        self._ids[key] = tuple(ids)
        if len(self._ids) > MOST:
            del self._ids[next(iter(self._ids))]

    def _ids_of(self, owner: str, session_id: str) -> Sequence[int]:
        return self._running(owner, session_id) or self._ids.get((owner, session_id), ())
