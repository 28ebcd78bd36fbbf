"""The thread that writes blocks: of low priority, and nobody waits for it but the process's end, for a while."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

import structlog

from maple.engine.prefix_disk.outbox import Block, Ended, Errand, Outbox, Removed, Task
from maple.engine.prefix_disk.store import PrefixStore
from maple.engine.prefix_disk.trouble import REST, Trouble

log = structlog.get_logger(__name__)

HUNG = "the disk does not answer"
HANGS = 10.0
"""Seconds after which a write that has not come back is told."""
STALLS = 10.0
"""Seconds without progress after which the process's end waits no longer, if it may wait so long at all."""
_NICE = 10
"""Behind all that serves, but not starved: at 19 a busy machine leaves it one part in seventy of a core."""


class PrefixWriter:
    """Opens a store and runs an outbox's errands on a thread of its own. What fails is dropped.

    ``wake`` makes the engine's thread feed the outbox; it is called when something waits there.
    """

    def __init__(
        self, store: PrefixStore, outbox: Outbox, trouble: Trouble, wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._outbox = outbox
        self._trouble = trouble
        self._wake = wake
        self._busy_since: float | None = None
        self._progress = threading.Event()
        self._closing = threading.Event()

    def start(self, model: str, kv_format: str) -> None:
        """Start the thread; the store is open once it has found what there is."""
        threading.Thread(
            target=self._main, args=(model, kv_format), name="maple-prefixes", daemon=True
        ).start()

    def look(self) -> None:
        """Tell it where the disk has not answered for long."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > HANGS:
            self._trouble.arise("write", HUNG)

    def finish(self, deadline: float) -> None:
        """On the engine's thread: hand over all that is left, while it is written without a pause."""
        while not self._done() and time.monotonic() < deadline and not self._trouble.rests("write"):
            self._progress.clear()
            self._outbox.feed()
            left = min(STALLS, deadline - time.monotonic())
            if not self._done() and not self._progress.wait(max(0.0, left)):
                self._trouble.arise("write", HUNG)
        self._outbox.close()
        self._closing.set()

    def _done(self) -> bool:
        return self._outbox.empty and self._busy_since is None

    def _main(self, model: str, kv_format: str) -> None:
        with contextlib.suppress(OSError, AttributeError):  # not a system where threads have priorities
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._tried(lambda: self._store.open(model, kv_format)):
            if self._closing.wait(REST):
                return
        self._wake()
        while (errand := self._outbox.next()) is not None:
            if isinstance(errand, Removed | Task) or not self._trouble.rests("write"):
                self._tried(lambda errand=errand: self._run(errand))  # type: ignore[misc] # bound now
            self._progress.set()
            if self._outbox.pending:
                self._wake()

    def _run(self, errand: Errand) -> None:
        match errand:
            case Block():
                self._store.write((errand.name, errand.sliding), errand.data)
            case Ended():
                self._store.touch(errand.blocks)
                if errand.session is not None:
                    self._store.note_session(*errand.session, (name for name, _ in errand.blocks))
            case Removed():
                self._store.remove([(name, sliding) for name in errand.names for sliding in (False, True)])
            case Task():
                errand.run()

    def _tried(self, work: Callable[[], None]) -> bool:
        self._busy_since = time.monotonic()
        try:
            work()
        except OSError as error:
            self._trouble.arise("write", error.strerror or type(error).__name__)
            return False
        else:
            self._trouble.over("write")
            return True
        finally:
            self._busy_since = None
