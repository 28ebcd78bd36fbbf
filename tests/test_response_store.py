"""The response store by itself: one file, its owners, its age limit, and what can be wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pathlib
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from maple_protocols.adapter import Kept
from maple_testing.guard import HANG_GUARD

from maple.responses_file import LAYOUT, StoreUnusable
from maple.responses_store import ResponseStore, StoreBroken, StoreBusy, StoreFull

T = TypeVar("T")
EVERY = "SELECT count(*) FROM responses"


def execute(file: pathlib.Path, sql: str) -> list[Any]:
    """The rows of a statement, on a connection of its own."""
    with contextlib.closing(sqlite3.connect(file)) as database:
        return database.execute(sql).fetchall()


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


NOW = time.time()
"""One moment for all, so that what is made twice is equal."""


def kept(name: str = "resp_1", text: str = "hi", age: float = 0) -> Kept:
    return Kept(id=name, created=int(NOW - age), items=({"id": "msg_1", "text": text},), body={"id": name})


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "responses.db"


@pytest.fixture
def store(file: pathlib.Path) -> Iterator[ResponseStore]:
    opened = ResponseStore(file, days=30)
    yield opened
    opened.close()


def test_what_is_put_can_be_got(store: ResponseStore) -> None:
    """Whole, with any text in it: half a surrogate pair that a model made, too."""
    answer = kept(text="árbol 🍁 \x00 \ud800")
    run(store.put("me", answer))
    assert run(store.get("me", "resp_1")) == answer


def test_it_is_still_there_after_a_restart(file: pathlib.Path) -> None:
    """The file holds everything."""
    first = ResponseStore(file, days=30)
    run(first.put("me", kept()))
    first.close()
    second = ResponseStore(file, days=30)
    assert run(second.get("me", "resp_1")) == kept()
    second.close()


def test_another_owner_finds_nothing(store: ResponseStore) -> None:
    """Neither to read nor to delete; the same id may belong to two."""
    run(store.put("me", kept()))
    assert run(store.get("you", "resp_1")) is None
    assert run(store.delete("you", "resp_1")) is False
    run(store.put("you", kept(text="yours")))
    assert run(store.get("me", "resp_1")) == kept()


def test_what_is_deleted_is_gone_from_the_file(file: pathlib.Path) -> None:
    """Once; and its text is overwritten where it stood."""
    store = ResponseStore(file, days=30)
    run(store.put("me", kept(text="a secret that was told")))
    assert run(store.delete("me", "resp_1")) is True
    assert run(store.delete("me", "resp_1")) is False
    assert run(store.get("me", "resp_1")) is None
    store.close()
    assert b"a secret that was told" not in file.read_bytes()


def test_answers_older_than_the_limit_are_forgotten(file: pathlib.Path) -> None:
    """They are not shown from that moment on, and gone from the file at the next start at the latest."""
    store = ResponseStore(file, days=1)
    run(store.put("me", kept("old", age=86_401)))
    run(store.put("me", kept("young", age=80_000)))
    assert run(store.get("me", "old")) is None
    assert run(store.delete("me", "old")) is False
    assert run(store.get("me", "young")) is not None
    store.close()
    ResponseStore(file, days=1).close()
    with sqlite3.connect(file) as database:
        assert database.execute(EVERY).fetchone() == (1,)
    database.close()


def test_old_answers_go_while_the_server_runs(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put looks for them once an hour."""
    monkeypatch.setattr("maple.responses_store.PURGE_SECONDS", 0)
    store = ResponseStore(file, days=1)
    run(store.put("me", kept("old", age=86_401)))
    store.close()
    assert execute(file, EVERY) == [(0,)]


def test_only_its_owner_can_read_the_file(store: ResponseStore, file: pathlib.Path) -> None:
    """Mode 0600, the write-ahead log included, whatever the umask."""
    run(store.put("me", kept()))
    files = sorted(file.parent.iterdir())
    assert [path.name for path in files] == [f"responses.db{end}" for end in ("", "-reserve", "-shm", "-wal")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_an_existing_file_is_closed_to_others(file: pathlib.Path) -> None:
    """Someone made it beforehand."""
    file.touch(0o644)
    ResponseStore(file, days=30).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_sql_never_runs_on_the_loop(store: ResponseStore, file: pathlib.Path) -> None:
    """A locked database makes one client wait, not all: the loop goes on."""

    async def put_while_locked(lock: sqlite3.Connection) -> None:
        waiting = asyncio.create_task(store.put("me", kept()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        lock.rollback()
        await waiting

    run(store.put("me", kept("resp_0")))
    lock = sqlite3.connect(file)
    lock.execute("BEGIN IMMEDIATE")
    run(put_while_locked(lock))
    lock.close()
    assert any(thread.name.startswith("maple-store") for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"this is a diary, and no database at all", "file is not a database"),
        (b"SQLite format 3\x00" + b"\xff" * 4080, "is not a sound SQLite database"),
    ],
)
def test_a_file_that_is_no_database_stops_the_start(file: pathlib.Path, content: bytes, reason: str) -> None:
    """In one line that names it; the file stays as it is."""
    file.write_bytes(content)
    with pytest.raises(StoreUnusable) as caught:
        ResponseStore(file, days=30)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("MAPLE_RESPONSE_STORE: ")
    assert reason in str(caught.value)
    assert file.read_bytes() == content


def test_a_database_of_another_program_is_left_alone(file: pathlib.Path) -> None:
    """By its application id; ours of a later layout, too."""
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE diary (entry TEXT)")
    database.close()
    with pytest.raises(StoreUnusable, match="another program or version"):
        ResponseStore(file, days=30)
    file.unlink()
    ResponseStore(file, days=30).close()
    with sqlite3.connect(file) as database:
        database.execute(f"PRAGMA user_version = {LAYOUT + 1}")
    database.close()
    with pytest.raises(StoreUnusable, match="another program or version"):
        ResponseStore(file, days=30)


def test_a_damaged_database_stops_the_start(file: pathlib.Path) -> None:
    """The header is sound, a page in the middle is not."""
    store = ResponseStore(file, days=30)
    for number in range(40):
        run(store.put("me", kept(f"resp_{number}", text="x" * 2000)))
    store.close()
    data = bytearray(file.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = os.urandom(4096)
    file.write_bytes(data)
    with pytest.raises(StoreUnusable, match=r"damaged|not a sound"):
        ResponseStore(file, days=30)


@pytest.mark.parametrize("kind", ["no folder", "a folder", "a pipe"])
def test_a_path_that_cannot_hold_a_file_stops_the_start(tmp_path: pathlib.Path, kind: str) -> None:
    """One line, and no waiting."""
    path = tmp_path / "place"
    if kind == "no folder":
        path /= "responses.db"
    elif kind == "a folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(StoreUnusable) as caught:
        ResponseStore(path, days=30)
    assert "\n" not in str(caught.value)


def test_the_file_does_not_grow_without_end(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients decide how much they store; at the limit they are told, and what was kept can still be read."""
    monkeypatch.setattr("maple.responses_file.LARGEST_BYTES", 64 * 1024)
    store = ResponseStore(file, days=30)
    run(store.put("me", kept()))
    with pytest.raises(StoreFull):
        run(store.put("me", kept("resp_2", text="x" * 100_000)))
    assert run(store.get("me", "resp_1")) is not None
    assert run(store.get("me", "resp_2")) is None
    store.close()
    assert file.stat().st_size <= 64 * 1024


def test_a_database_that_breaks_says_so(store: ResponseStore, file: pathlib.Path) -> None:
    """Its table is gone: every call fails with SQLite's reason for the log."""
    execute(file, "DROP TABLE responses")
    with pytest.raises(StoreBroken, match="no such table"):
        run(store.get("me", "resp_1"))


SECRET = "a secret that was told, " * 1000


def on_disk(file: pathlib.Path) -> bytes:
    """All that any of the store's files holds."""
    return b"".join(path.read_bytes() for path in file.parent.iterdir())


def test_what_is_deleted_or_too_old_is_on_no_file_at_once(
    store: ResponseStore, file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write-ahead log included, while the server goes on; a reader that has just been there is no hindrance."""
    run(store.put("me", kept(text=SECRET)))
    run(store.get("me", "resp_1"))
    assert SECRET[:20].encode() in on_disk(file)
    assert run(store.delete("me", "resp_1"))
    assert SECRET[:20].encode() not in on_disk(file)
    run(store.put("me", kept("old", text=SECRET, age=31 * 86_400)))
    run(store.purge())
    assert SECRET[:20].encode() not in on_disk(file)


def test_old_answers_go_though_nobody_puts(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer looks for them."""
    store = ResponseStore(file, days=1)

    async def main() -> None:
        await store.put("me", kept("old", text=SECRET, age=86_401))
        monkeypatch.setattr("maple.responses_store.PURGE_SECONDS", 0.01)
        timer = asyncio.create_task(store.keep_purging())
        for _ in range(1000):
            await asyncio.sleep(0.02)
            if execute(file, EVERY) == [(0,)]:
                break
        timer.cancel()

    run(main())
    store.close()
    assert SECRET[:20].encode() not in on_disk(file)


def test_a_clock_that_is_wrong_at_start_deletes_nothing(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month ahead: the purge is postponed until the clock has gone on for a day; set right, everything is there."""
    store = ResponseStore(file, days=30)
    run(store.put("me", kept()))
    store.close()
    true, running = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: true() + 31 * 86_400)
    store = ResponseStore(file, days=30)
    assert run(store.get("me", "resp_1")) is None
    store.close()
    monkeypatch.setattr(time, "time", true)
    store = ResponseStore(file, days=30)
    assert run(store.get("me", "resp_1")) == kept()
    store.close()
    monkeypatch.setattr(time, "time", lambda: true() + 31 * 86_400)
    store = ResponseStore(file, days=30)
    monkeypatch.setattr(time, "monotonic", lambda: running() + 86_401)
    run(store.purge())
    assert execute(file, EVERY) == [(0,)]
    store.close()


def test_a_file_from_before_the_clock_was_kept_is_opened(file: pathlib.Path) -> None:
    """The newest answer tells the time."""
    store = ResponseStore(file, days=30)
    run(store.put("me", kept(age=40 * 86_400)))
    store.close()
    execute(file, "DROP TABLE clock")
    store = ResponseStore(file, days=30)
    assert execute(file, EVERY) == [(1,)]
    store.close()


@pytest.mark.parametrize("failures", [1, 2])
def test_on_a_full_disk_an_answer_can_still_be_deleted(
    file: pathlib.Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Deleting writes before it frees: the reserve is for that, and where it is too small, nothing is overwritten."""
    full: list[sqlite3.OperationalError] = []

    class Disk(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if full and sql.startswith("DELETE FROM responses"):
                raise full.pop()
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Disk))
    store = ResponseStore(file, days=30)
    run(store.put("me", kept(text=SECRET)))
    for _ in range(failures):
        full.append(sqlite3.OperationalError("database or disk is full"))
        full[-1].sqlite_errorcode = sqlite3.SQLITE_FULL
    assert run(store.delete("me", "resp_1"))
    assert (run(store.get("me", "resp_1")), full) == (None, [])
    store.close()


def test_a_file_size_limit_is_a_full_disk(file: pathlib.Path) -> None:
    """As for sessions; in a process of its own, whose limit ends with it."""
    program = (
        "import asyncio, pathlib, resource, sys\n"
        "from maple_protocols.adapter import Kept\n"
        "from maple.responses_store import ResponseStore, StoreFull\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "store = ResponseStore(pathlib.Path(sys.argv[1]), days=30)\n"
        "kept = lambda n, t: Kept(id=n, created=1 << 40, items=({'t': t},), body={})\n"
        "asyncio.run(store.put('me', kept('small', 'x')))\n"
        "try:\n"
        "    asyncio.run(store.put('me', kept('large', 'x' * 1_000_000)))\n"
        "except StoreFull:\n"
        "    print(asyncio.run(store.delete('me', 'small')))\n"
        "store.close()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, check=True)
    assert ran.stdout.endswith("True\n")


def test_a_locked_database_makes_all_wait_once_and_readers_not_at_all(
    store: ResponseStore, file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten writers: each is refused when its own time is up, not ten times as late. What is kept can be read."""
    monkeypatch.setattr("maple.responses_store.BUSY_SECONDS", 0.2)
    run(store.put("me", kept()))
    lock = sqlite3.connect(file)
    lock.execute("BEGIN IMMEDIATE")

    async def main() -> None:
        puts = [asyncio.create_task(store.put("me", kept(f"resp_{n}"))) for n in range(2, 12)]
        await asyncio.sleep(0)
        assert await store.get("me", "resp_1") == kept()
        assert not any(put.done() for put in puts)
        refused = await asyncio.gather(*puts, return_exceptions=True)
        assert {type(each) for each in refused} == {StoreBusy}

    run(main())
    lock.close()
    run(store.put("me", kept("resp_2")))


def test_a_disk_that_hangs_is_waited_for_so_long(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's thread does not come back: the call is refused, readers go on, and closing does not hang."""
    disk = threading.Event()

    class Disk(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith("INSERT INTO responses"):
                disk.wait(HANG_GUARD)
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Disk))
    store = ResponseStore(file, days=30)
    monkeypatch.setattr("maple.responses_store.HUNG_SECONDS", 0.05)
    monkeypatch.setattr("maple.responses_store.BUSY_SECONDS", 0.05)
    with pytest.raises(StoreBusy):
        run(store.put("me", kept()))
    monkeypatch.setattr("maple.responses_store.BUSY_SECONDS", 5.0)
    monkeypatch.setattr("maple.responses_store.HUNG_SECONDS", 20)
    assert run(store.get("me", "resp_1")) is None
    monkeypatch.setattr("maple.responses_store.BUSY_SECONDS", 0.05)
    store.close()
    disk.set()
