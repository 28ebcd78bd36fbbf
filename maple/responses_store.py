"""Answers kept for later requests: one SQLite file, whose SQL runs on threads of its own: one writes, two read.

Rows belong to owners (the names of keys): what one owner kept does not exist for another. Deleted rows are
overwritten in the file, and the write-ahead log is cut after each deletion. SQL by hand: no library between would
do that, nor go on deleting where the disk is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import resource
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar, cast

import attrs
import structlog
from maple_protocols.adapter import JsonObject, Kept

from maple.errors import MapleError
from maple.responses_file import Reserve, open_database

log = structlog.get_logger(__name__)
T = TypeVar("T")

SCHEME = "sqlite:"
DAY = 86_400
PURGE_SECONDS = 3_600
BUSY_SECONDS = 5.0
"""How long a call waits in all: for its turn, for another program's lock, for the disk."""
HUNG_SECONDS = 10.0
"""How long a call is waited for whose thread does not come back at all."""
READERS = 2
FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG})


class StoreFull(MapleError):
    """There is no room for another answer; what was kept is intact."""


class StoreBusy(MapleError):
    """The database is locked, or its disk hangs, for longer than a call may wait."""


@attrs.define(eq=False)
class StoreBroken(MapleError):
    """The database failed. ``reason`` is SQLite's, for the log."""

    reason: str


class ResponseStore:
    """Keeps answers for ``days`` days. Awaitable methods are called on the event loop."""

    def __init__(self, file: pathlib.Path, *, days: float) -> None:
        """Open or create the file, mode 0600. Blocks meanwhile. Raises StoreUnusable."""
        self._seconds = days * DAY
        self._purged = 0.0
        self._jumped: float | None = None
        self._path = file.expanduser().absolute()
        self._reserve = Reserve(self._path.with_name(f"{self._path.name}-reserve"))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="maple-store")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="maple-store-read")
        self._reading = threading.local()
        self._connections: list[sqlite3.Connection] = []
        try:
            self._database = self._thread.submit(open_database, file, BUSY_SECONDS).result()
            self._connections.append(self._database)
            self._thread.submit(self._begin).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def put(self, owner: str, kept: Kept) -> None:
        """Keep an answer. Raises StoreFull, StoreBusy or StoreBroken."""
        await self._run(lambda: self._put(owner, kept))

    async def get(self, owner: str, wanted: str) -> Kept | None:
        """The owner's answer of that id. Raises StoreBusy or StoreBroken."""
        return await self._run(lambda: self._get(owner, wanted), self._readers)

    async def delete(self, owner: str, wanted: str) -> bool:
        """Forget an answer; False where there is none. Raises StoreBusy or StoreBroken."""
        return await self._run(lambda: self._delete(owner, wanted))

    async def purge(self) -> None:
        """Forget what is too old. Raises StoreFull, StoreBusy or StoreBroken."""
        await self._run(self._purge)

    async def keep_purging(self) -> None:
        """Purge once an hour, until cancelled."""
        while True:
            await asyncio.sleep(PURGE_SECONDS)
            with contextlib.suppress(StoreFull, StoreBusy, StoreBroken):  # logged, and tried again
                await self.purge()

    def close(self) -> None:
        """Finish what is under way and let go of the file; a call that hangs is waited for no longer than others."""
        last = self._thread.submit(self._close)
        for pool in (self._thread, self._readers):
            pool.shutdown(wait=False)
        with contextlib.suppress(TimeoutError):
            last.result(BUSY_SECONDS)

    def _close(self) -> None:
        for connection in reversed(self._connections):
            connection.close()
        self._reserve.drop()

    async def _run(self, work: Callable[[], T], executor: Executor | None = None) -> T:
        deadline = time.monotonic() + BUSY_SECONDS
        database = self._reader if executor else lambda: self._database

        def timed() -> T:
            left = deadline - time.monotonic()
            if left <= 0:
                raise StoreBusy
            database().execute(f"PRAGMA busy_timeout = {int(left * 1000)}").fetchall()
            return work()

        try:
            async with asyncio.timeout(HUNG_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(executor or self._thread, timed)
        except TimeoutError:
            log.error("store.hung", seconds=HUNG_SECONDS)  # noqa: TRY400 -- there is nothing else to tell
            raise StoreBusy from None
        except sqlite3.Error as error:
            raise _meaning(error) from None

    def _reader(self) -> sqlite3.Connection:
        """The calling thread's own connection."""
        found: sqlite3.Connection | None = getattr(self._reading, "database", None)
        if found is None:
            found = sqlite3.connect(self._path, timeout=BUSY_SECONDS, check_same_thread=False)
            self._connections.append(found)
            self._reading.database = found
        return found

    def _begin(self) -> None:
        self._reserve.take()
        self._database.execute("CREATE TABLE IF NOT EXISTS clock (seen INTEGER NOT NULL)")
        self._purge()
        self._truncate_log()

    def _put(self, owner: str, kept: Kept) -> None:
        row = (owner, kept.id, kept.created, _text(kept.items), _text(kept.body))
        with self._database as database:
            database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?)", row)
        if time.monotonic() - self._purged > PURGE_SECONDS:
            self._purge()

    def _get(self, owner: str, wanted: str) -> Kept | None:
        row = (
            self._reader()
            .execute(
                "SELECT id, created, items, body FROM responses WHERE owner = ? AND id = ? AND created > ?",
                (owner, wanted, self._oldest()),
            )
            .fetchone()
        )
        if row is None:
            return None
        items = cast("list[JsonObject]", json.loads(row[2]))
        return Kept(id=row[0], created=row[1], items=tuple(items), body=json.loads(row[3]))

    def _delete(self, owner: str, wanted: str) -> bool:
        where = "owner = ? AND id = ? AND created > ?"
        return self._remove(where, owner, wanted, self._oldest()) > 0

    def _purge(self) -> None:
        """Forget what is too old, unless the clock may be wrong: then it would be everything, for good."""
        self._purged = time.monotonic()
        if self._clock_has_jumped():
            return
        with self._database as database:
            database.execute("DELETE FROM clock")
            database.execute("INSERT INTO clock VALUES (?)", (int(time.time()),))
        if gone := self._remove("created <= ?", self._oldest()):
            log.info("store.purged", responses=gone)

    def _clock_has_jumped(self) -> bool:
        """Whether the clock is over a day ahead of all that is known here, and has not run on like that for a day."""
        known = self._database.execute(
            "SELECT max(t) FROM (SELECT max(seen) AS t FROM clock UNION SELECT max(created) FROM responses)"
        ).fetchone()[0]
        ahead = 0.0 if known is None else time.time() - known
        if ahead <= DAY:
            self._jumped = None
            return False
        if self._jumped is None:
            self._jumped = time.monotonic()
            log.warning("store.purge_postponed", clock_ahead_days=round(ahead / DAY, 1))
        return time.monotonic() - self._jumped < DAY

    def _remove(self, where: str, *values: object) -> int:
        """Delete rows, so that neither file nor log holds them afterwards; also on a full disk."""
        try:
            gone = self._remove_once(where, values)
        except sqlite3.Error as error:
            if not isinstance(_meaning(error), StoreFull):
                raise
            gone = self._remove_on_a_full_disk(where, values)
        if gone:
            self._truncate_log()
        return gone

    def _remove_once(self, where: str, values: tuple[object, ...]) -> int:
        with self._database as database:
            gone = database.execute(f"DELETE FROM responses WHERE {where}", values).rowcount  # noqa: S608 -- our own text
        if gone:
            self._database.execute("PRAGMA incremental_vacuum").fetchall()
        return gone

    def _remove_on_a_full_disk(self, where: str, values: tuple[object, ...]) -> int:
        """With the reserve's room; where that is too small, without overwriting what is deleted."""
        self._reserve.drop()
        try:
            return self._remove_once(where, values)
        except sqlite3.OperationalError:
            log.warning("store.not_overwritten", reason="the disk is full")
            self._database.execute("PRAGMA secure_delete = OFF").fetchall()
            return self._remove_once(where, values)
        finally:
            self._database.execute("PRAGMA secure_delete = ON").fetchall()
            self._truncate_log()
            self._reserve.take()

    def _truncate_log(self) -> None:
        with contextlib.suppress(
            sqlite3.OperationalError
        ):  # somebody reads, or the disk is full: the next one will
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _oldest(self) -> float:
        return time.time() - self._seconds


def _meaning(error: sqlite3.Error) -> MapleError:
    """What a failure of the database is to a client; one that is nobody's fault is logged."""
    code = getattr(error, "sqlite_errorcode", 0)
    limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    if code in FULL or (code == sqlite3.SQLITE_IOERR_WRITE and limited):
        return StoreFull()
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy()
    log.error("store.failed", reason=str(error))
    return StoreBroken(str(error))


def _text(value: object) -> str:
    """JSON in ASCII: it holds whatever text a model or client may send."""
    return json.dumps(value, separators=(",", ":"))
