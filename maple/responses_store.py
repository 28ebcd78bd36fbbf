"""Answers kept for later requests: one SQLite file, all of whose SQL runs on a thread of its own.

Rows belong to owners (the names of keys): what one owner kept does not exist for another. Deleted rows are
overwritten in the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import sqlite3
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import attrs
import structlog
from maple_protocols.adapter import JsonObject, Kept

from maple.errors import MapleError

log = structlog.get_logger(__name__)
T = TypeVar("T")

SCHEME = "sqlite:"
APPLICATION_ID = 0x4D41504C
"""Marks the file as ours ("MAPL"), so that no other program's database is ever written to."""
LAYOUT = 1
DAY = 86_400
PURGE_SECONDS = 3_600
BUSY_SECONDS = 5.0
PAGE_BYTES = 4096
LARGEST_BYTES = 4 << 30
"""The most that the file may hold: clients decide how much they store."""
FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG})

_LAYOUT_SQL = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS responses (
    owner TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, items TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS responses_by_age ON responses (created);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {LAYOUT};
COMMIT;
"""


@attrs.define(eq=False, str=False)
class StoreUnusable(MapleError):
    """The store cannot be opened. ``reason`` says why."""

    file: pathlib.Path
    reason: str

    def __str__(self) -> str:
        return f"MAPLE_RESPONSE_STORE: {self.file} {self.reason}"


class StoreFull(MapleError):
    """There is no room for another answer; what was kept is intact."""


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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="maple-store")
        try:
            self._database = self._thread.submit(_open, file).result()
            self._thread.submit(self._purge).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def put(self, owner: str, kept: Kept) -> None:
        """Keep an answer. Raises StoreFull or StoreBroken."""
        await self._run(lambda: self._put(owner, kept))

    async def get(self, owner: str, wanted: str) -> Kept | None:
        """The owner's answer of that id. Raises StoreBroken."""
        return await self._run(lambda: self._get(owner, wanted))

    async def delete(self, owner: str, wanted: str) -> bool:
        """Forget an answer; False where there is none. Raises StoreBroken."""
        return await self._run(lambda: self._delete(owner, wanted))

    def close(self) -> None:
        """Finish what is under way and let go of the file."""
        self._thread.submit(self._database.close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) in FULL:
                raise StoreFull from None
            log.error("store.failed", reason=str(error))  # noqa: TRY400 -- SQLite's word is all there is
            raise StoreBroken(str(error)) from None

    def _put(self, owner: str, kept: Kept) -> None:
        row = (owner, kept.id, kept.created, _text(kept.items), _text(kept.body))
        with self._database as database:
            database.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?)", row)
        if time.monotonic() - self._purged > PURGE_SECONDS:
            self._purge()

    def _get(self, owner: str, wanted: str) -> Kept | None:
        row = self._database.execute(
            "SELECT id, created, items, body FROM responses WHERE owner = ? AND id = ? AND created > ?",
            (owner, wanted, self._oldest()),
        ).fetchone()
        if row is None:
            return None
        items = cast("list[JsonObject]", json.loads(row[2]))
        return Kept(id=row[0], created=row[1], items=tuple(items), body=json.loads(row[3]))

    def _delete(self, owner: str, wanted: str) -> bool:
        with self._database as database:
            found = database.execute(
                "DELETE FROM responses WHERE owner = ? AND id = ? AND created > ?",
                (owner, wanted, self._oldest()),
            )
        return found.rowcount > 0

    def _purge(self) -> None:
        self._purged = time.monotonic()
        with self._database as database:
            gone = database.execute("DELETE FROM responses WHERE created <= ?", (self._oldest(),)).rowcount
        if gone:
            self._database.execute("PRAGMA incremental_vacuum").fetchall()
            log.info("store.purged", responses=gone)

    def _oldest(self) -> float:
        return time.time() - self._seconds


def _text(value: object) -> str:
    """JSON in ASCII: it holds whatever text a model or client may send."""
    return json.dumps(value, separators=(",", ":"))


def _open(file: pathlib.Path) -> sqlite3.Connection:
    """On the store's thread."""
    _protect(file)
    database = sqlite3.connect(file, timeout=BUSY_SECONDS)
    try:
        _prepare(database, file)
    except sqlite3.Error as error:
        database.close()
        raise StoreUnusable(file, f"is not a sound SQLite database ({error})") from None
    except StoreUnusable:
        database.close()
        raise
    return database


def _protect(file: pathlib.Path) -> None:
    """Make sure of a file that only its owner can read; SQLite gives its further files the same mode."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o600)
        with open(descriptor, "rb"):  # noqa: PTH123 -- a descriptor, not a path
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StoreUnusable(file, "is not a file")
            os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise StoreUnusable(file, f"cannot be opened ({error.strerror})") from None


def _prepare(database: sqlite3.Connection, file: pathlib.Path) -> None:
    """Create the table in an empty database; check a used one."""
    database.execute("PRAGMA secure_delete = ON").fetchall()
    database.execute(f"PRAGMA max_page_count = {LARGEST_BYTES // PAGE_BYTES}").fetchall()
    if not database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.execute("PRAGMA journal_mode = WAL").fetchall()
        database.executescript(_LAYOUT_SQL)
        return
    marks = [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
    if marks != [APPLICATION_ID, LAYOUT]:
        raise StoreUnusable(file, "is a database of another program or version")
    found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreUnusable(file, f"is damaged: {str(found).splitlines()[0]}")
