"""Saving and loading sessions: snapshots on the engine's thread, between steps; files on others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import structlog

from maple.engine.api import Job
from maple.engine.errors import (
    EngineOverloaded,
    SessionError,
    SessionsFull,
    SessionTampered,
    SessionUnknown,
    ShuttingDown,
)
from maple.engine.file_threads import FileThreads
from maple.engine.kv.cache import KvSnapshot, SnapshotUnfit, Wait
from maple.engine.live_sessions import LiveSessions
from maple.engine.session_files import SessionFiles
from maple.engine.stats import SessionLoaded, SessionManifest

log = structlog.get_logger(__name__)
T = TypeVar("T")

_REVIVE_SECONDS = 10.0
"""How long a job with a slot waits for its saved session before it does without."""


class EngineCalls(Protocol):
    """Runs a function on the engine's thread, between two steps."""

    async def __call__(self, function: Callable[[LiveSessions], T]) -> T:
        """What the function returns or raises; ShuttingDown where the thread has ended."""
        ...


class SavedSessions:
    """An engine's sessions, live and saved; its methods belong to the event loop.

    ``files`` None: nothing is ever saved. Before ``serve`` nothing is live. No lock, disk or thread is waited for
    without a bound: SessionBusy.
    """

    def __init__(self, call: EngineCalls, files: SessionFiles | None) -> None:
        self._call = call
        self._files = files
        self._threads = FileThreads()
        self._model = self._kv_format = ""
        self._saving = asyncio.Lock()  # one snapshot in memory at a time is enough

    def serve(self, model: str, kv_format: str) -> None:
        """A model is loaded; sessions of other weights or formats are of no use to it."""
        self._model, self._kv_format = model, kv_format

    def close(self) -> None:
        """Whoever waits for a file gets ShuttingDown."""
        self._threads.close()

    async def save(self, owner: str, session_id: str) -> SessionManifest:
        """Write what is live."""
        files = self._configured()
        # First, and not with everybody behind: somebody may keep the session's lock.
        await self._threads.run(owner, lambda: files.wait_until_free(owner, session_id))
        async with self._saving:
            snapshot = await self._call(lambda live: live.snapshot(owner, session_id))
            if snapshot is None:
                raise SessionUnknown
            manifest = await self._threads.run(
                owner, lambda: files.save(owner, session_id, snapshot, self._model)
            )
        log.info("session.saved", tokens=manifest.tokens, bytes=manifest.bytes)
        return manifest

    async def load(self, owner: str, session_id: str) -> SessionLoaded:
        """Make what was saved live."""
        files, begun = self._configured(), time.monotonic()
        manifest, snapshot = await self._threads.run(
            owner, lambda: files.load(owner, session_id, model=self._model, kv_format=self._kv_format)
        )
        tokens = await self._restored(owner, session_id, snapshot)
        milliseconds = (time.monotonic() - begun) * 1000
        log.info("session.loaded", tokens=tokens, bytes=manifest.bytes, ms=round(milliseconds, 1))
        return SessionLoaded(
            session_id=session_id, tokens=tokens, bytes=manifest.bytes, load_ms=round(milliseconds, 3)
        )

    async def manifest(self, owner: str, session_id: str) -> SessionManifest:
        """What the last save was."""
        files = self._configured()
        return await self._threads.run(owner, lambda: files.manifest(owner, session_id))

    async def delete(self, owner: str, session_id: str) -> None:
        """Forget what is live, then what is saved."""
        was_live = was_saved = False
        if self._model:
            with contextlib.suppress(ShuttingDown):  # the thread has ended, and all that was live with it
                was_live = await self._call(lambda live: live.forget(owner, session_id))
        if (files := self._files) is not None:
            was_saved = await self._threads.run(owner, lambda: files.delete(owner, session_id))
        if not was_live and not was_saved:
            raise SessionUnknown

    def may_be_saved(self, job: Job) -> bool:
        """Whether the job's session might have to be loaded before it runs; no disk is asked."""
        return job.session_id is not None and self._files is not None

    async def revive(self, job: Job) -> None:
        """Load the job's session if it was evicted; the job runs without it where that fails or takes long."""
        session_id = job.session_id or ""
        try:
            async with asyncio.timeout(_REVIVE_SECONDS):
                there, whole = await self._call(lambda live: live.resident(job.owner, session_id))
                if whole and there == whole:
                    return
                saved = (await self.manifest(job.owner, session_id)).tokens
                if there < (min(whole, saved) or saved):
                    await self.load(job.owner, session_id)
        except SessionUnknown:
            return
        except (SessionError, EngineOverloaded, ShuttingDown, OSError) as error:
            log.warning(
                "session.not_revived",
                request_id=job.request_id,
                kind=type(error).__name__,
                reason=getattr(error, "reason", ""),
            )

    async def _restored(self, owner: str, session_id: str, snapshot: KvSnapshot) -> int:
        try:
            tokens = await self._call(lambda live: live.restore(owner, session_id, snapshot))
        except SnapshotUnfit as error:
            raise SessionTampered(str(error)) from error
        if isinstance(tokens, Wait):
            raise EngineOverloaded("queue_full")
        if not tokens:
            raise SessionsFull("MAPLE_PREFIX_CACHE_MB has no room for the session")
        return tokens

    def _configured(self) -> SessionFiles:
        if self._files is None:
            raise SessionUnknown
        return self._files
