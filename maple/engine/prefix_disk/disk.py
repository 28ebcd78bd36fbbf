"""Prefixes on disk as the engine sees them: one object that follows, writes and reads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Callable

import attrs
import structlog

from maple.engine.api import Job
from maple.engine.errors import ShuttingDown
from maple.engine.prefix_disk.names import Owners
from maple.engine.prefix_disk.outbox import Outbox
from maple.engine.prefix_disk.reader import OnThread, PrefixReader
from maple.engine.prefix_disk.store import PrefixStore
from maple.engine.prefix_disk.trouble import Trouble
from maple.engine.prefix_disk.writer import PrefixWriter
from maple.engine.runner import LoadedEngine

log = structlog.get_logger(__name__)

_END_SECONDS = 2.0
"""What the last writes get beyond the drain, or without one."""
_FORGET_SECONDS = 10.0


@attrs.frozen(kw_only=True)
class DiskFigures:
    """Bytes of blocks on the disk, and counts of what this process wrote, read and found damaged there."""

    prefix_disk_bytes: int = 0
    prefix_disk_written_blocks: int = 0
    prefix_disk_read_blocks: int = 0
    prefix_disk_damaged_blocks: int = 0


@attrs.frozen
class _Attached:
    outbox: Outbox
    writer: PrefixWriter
    reader: PrefixReader
    wake: Callable[[], None]


class PrefixDisk:
    """Keeps the blocks of whatever model is loaded.

    ``attach``, ``feed`` and ``finish`` belong to the engine's thread, all else to the event loop. Nothing waits for the
    disk without a bound, and no failure of it reaches a request.
    """

    def __init__(self, store: PrefixStore, owners: Owners | None = None) -> None:
        self._store = store
        self._trouble = Trouble()
        self._attached: _Attached | None = None
        self._deadline: float | None = None
        if owners is not None:
            owners.listen(self._keys_changed)

    @property
    def figures(self) -> DiskFigures:
        """As of now."""
        return DiskFigures(
            prefix_disk_bytes=self._store.nbytes,
            prefix_disk_written_blocks=self._store.written,
            prefix_disk_read_blocks=self._store.read_blocks,
            prefix_disk_damaged_blocks=self._store.damaged,
        )

    def attach(self, loaded: LoadedEngine, model: str, wake: Callable[[], None]) -> None:
        """Follow a model's blocks; nothing is done for a runner that has none."""
        if (source := loaded.blocks) is None:
            log.warning("settings.only_for_the_kernels", variables=["MAPLE_PREFIX_DIR"])
            return
        store = self._store
        ends = frozenset(loaded.served.eos_token_ids)
        outbox = Outbox(source, lambda: store.names if store.ready else None, store.known, ends)
        writer = PrefixWriter(store, outbox, self._trouble, wake)
        self._attached = _Attached(outbox, writer, PrefixReader(store, source, self._trouble), wake)
        source.observe(outbox)
        writer.start(model, loaded.runner.kv_format)

    def feed(self) -> None:
        """Between two steps."""
        if (on := self._attached) is not None:
            on.writer.look()
            if not self._trouble.rests("write"):
                on.outbox.feed()

    def finish(self) -> None:
        """Write what is left, until the drain's end, while the disk keeps up."""
        if (on := self._attached) is not None:
            on.writer.finish(self._deadline or time.monotonic() + _END_SECONDS)

    def drain(self, seconds: float) -> None:
        """The server ends in so many seconds."""
        self._deadline = time.monotonic() + seconds + _END_SECONDS

    def close(self) -> None:
        """Nobody waits for what is being read."""
        if (on := self._attached) is not None:
            on.reader.close()

    @property
    def reads(self) -> bool:
        """Whether a prompt may be looked up now, or once the store is open."""
        opens = self._store.ready or not self._trouble.rests("write")
        return self._attached is not None and opens and not self._trouble.rests("read")

    async def fetch(self, call: OnThread, job: Job, left: Callable[[], bool]) -> None:
        """Have as much of the job's prompt in memory as there is."""
        if (on := self._attached) is not None:
            with contextlib.suppress(ShuttingDown):
                await on.reader.fetch(call, job.owner, job.prompt_ids, left)

    async def forget_session(self, call: OnThread, owner: str, session_id: str) -> None:
        """Remove what the session has on the disk; where that hangs it is removed later."""
        if (on := self._attached) is None:
            return
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def forget() -> None:
            try:
                self._store.forget_session(owner, session_id)
            finally:
                done.set_result(None)

        with contextlib.suppress(ShuttingDown, TimeoutError):
            await call(lambda: on.outbox.ask(forget))
            on.wake()
            await asyncio.wait_for(asyncio.wrap_future(done), _FORGET_SECONDS)

    def _keys_changed(self) -> None:
        if (on := self._attached) is not None:
            on.outbox.ask_now(self._store.keep_owners)
