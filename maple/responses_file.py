"""The file of the response store: whose it is, what is in it, and the room kept for deleting from it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3
import stat

import attrs
import structlog

from maple.errors import MapleError

log = structlog.get_logger(__name__)

APPLICATION_ID = 0x4D41504C
"""Marks the file as ours ("MAPL"), so that no other program's database is ever written to."""
LAYOUT = 1
PAGE_BYTES = 4096
LARGEST_BYTES = 4 << 30
"""The most that the file may hold: clients decide how much they store."""
RESERVE_BYTES = 4 << 20
"""Kept beside the file and given up for deletions, which write before they free, when the disk is full."""

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


@attrs.frozen
class Reserve:
    """A file that only takes up room, until that is needed."""

    path: pathlib.Path

    def take(self) -> None:
        """Fill it; where there is no room, the log says so."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:  # noqa: PTH123 -- a descriptor, not a path
                file.write(bytes(RESERVE_BYTES))
        except OSError as error:
            self.drop()
            log.warning("store.no_reserve", reason=error.strerror)

    def drop(self) -> None:
        """Give the room back."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


def open_database(file: pathlib.Path, patience: float) -> sqlite3.Connection:
    """Open or create the file, on the thread that will use it, and wait so long for locks. Raises StoreUnusable."""
    _protect(file)
    database = sqlite3.connect(file, timeout=patience)
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
    database.execute("PRAGMA synchronous = FULL")  # builds differ in what they take a commit for
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
