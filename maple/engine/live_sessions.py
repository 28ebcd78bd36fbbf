"""Which conversations have their keys and values in memory. The engine's thread alone uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from maple.engine.kv.cache import CacheHandle, KvSnapshot, Wait
from maple.engine.runner import Runner


class LiveSessions:
    """Sessions by owner and id, as long as the runner keeps something of them or a sequence of theirs runs.

    ``running`` tells what a session's running sequence has computed; ``release`` makes such sequences go on
    without the session, and leave nothing: their caches.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        running: Callable[[str, str], Sequence[int]],
        release: Callable[[str, str], Sequence[CacheHandle[Any]]],
    ) -> None:
        self._runner = runner
        self._running = running
        self._release = release

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
        return self._runner.restore(owner, snapshot, (owner, session_id))

    def forget(self, owner: str, session_id: str) -> bool:
        """Drop the session and what is kept for it alone; whether there was one."""
        running = self._release(owner, session_id)
        return self._runner.forget_session((owner, session_id), running) or bool(running)

    def _ids_of(self, owner: str, session_id: str) -> Sequence[int]:
        return self._running(owner, session_id) or self._runner.session_ids((owner, session_id))
