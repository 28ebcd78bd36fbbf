"""kill -9 at any moment, again and again: what was acknowledged is there, and what was not is whole or absent."""

from __future__ import annotations

import asyncio
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

import pytest

from maple.engine.prefix_disk.store import PrefixStore
from maple.engine.session_files import SessionFiles
from maple.responses_store import ResponseStore

ROUNDS = 25
CASES = int(os.environ.get("STRESS_CASES", "10"))
WRITER = """
import asyncio, pathlib, sys, time
import numpy
from maple_protocols.adapter import Kept
from maple.engine.kv.cache import KvSnapshot
from maple.engine.session_files import SessionFiles
from maple.responses_store import ResponseStore

root, first = pathlib.Path(sys.argv[1]), int(sys.argv[2])
files = SessionFiles(root / "sessions", max_bytes=1 << 30)
store = ResponseStore(root / "responses.db", days=30)
for number in range(first, first + 1_000_000):
    arrays = {"full": numpy.full((2, 5000), number % 251, numpy.uint8)}
    files.save("me", "s", KvSnapshot(ids=[number + 1] * 5, kv_format="test/1", arrays=arrays), "maple-0")
    print("saved", number, flush=True)
    kept = Kept(id=f"resp_{number}", created=int(time.time()), items=({"n": number},), body={"n": number})
    asyncio.run(store.put("me", kept))
    print("put", number, flush=True)
    if number % 5 == 4:
        asyncio.run(store.delete("me", f"resp_{number - 2}"))
        print("deleted", number - 2, flush=True)
"""


def killed_after(root: pathlib.Path, first: int, lines: int) -> list[tuple[str, int]]:
    """Let a writer go on from ``first``, kill it once it has acknowledged so much, and tell what it acknowledged."""
    command = [sys.executable, "-c", WRITER, str(root), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        told += writer.stdout.readlines()
    return [
        (words[0], int(words[1])) for line in told if line.endswith("\n") and len(words := line.split()) == 2
    ]


def test_nothing_acknowledged_is_lost(tmp_path: pathlib.Path) -> None:
    """Sessions and responses, killed in the middle of whatever they do; each start finds everything sound."""
    dice = random.Random(9)  # noqa: S311 -- seeded, no secret
    present: set[int] = set()
    first = 0
    for _ in range(ROUNDS):
        told = killed_after(tmp_path, first, dice.randint(1, 12))
        saved = max((number for word, number in told if word == "saved"), default=first - 1)
        present |= {number for word, number in told if word == "put"}
        gone = {number for word, number in told if word == "deleted"}
        present -= gone
        files = SessionFiles(tmp_path / "sessions", max_bytes=1 << 30)
        manifest, snapshot = files.load("me", "s", model="maple-0", kv_format="test/1")
        assert manifest.tokens == 5
        assert snapshot.ids[0] - 1 in (saved, saved + 1)
        assert int(snapshot.arrays["full"][0, 0]) == (snapshot.ids[0] - 1) % 251
        store = ResponseStore(tmp_path / "responses.db", days=30)
        found = {number: asyncio.run(store.get("me", f"resp_{number}")) for number in sorted(present | gone)}
        # A deletion that was under way may have come through.
        assert {number for number in present if found[number] is None} <= {max(present, default=0) - 2}
        assert not [number for number in gone if found[number] is not None]
        present = {number for number in present if found[number] is not None}
        store.close()
        first = saved + 2


TOLD = """
import asyncio, pathlib, sys, time
from maple_protocols.adapter import Kept
from maple.responses_store import ResponseStore

root = pathlib.Path(sys.argv[1])
store = ResponseStore(root / "responses.db", days=30)
kept = Kept(id="resp_1", created=int(time.time()), items=({"n": 1},), body={"n": 1})
for work in (store.put("me", kept), store.delete("me", "resp_1")):
    asyncio.run(work)
    (root / "told").write_text("done")
store.close()
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_response_is_on_the_disk_before_it_is_acknowledged(tmp_path: pathlib.Path) -> None:
    """Power may fail at any time: what was written is synced, and so is the folder that has the new files."""
    calls = "openat,pwrite64,write,ftruncate,fsync,fdatasync"
    trace, root = tmp_path / "trace", tmp_path / "store"
    root.mkdir()
    command = ["strace", "-f", "-y", "-e", f"trace={calls}", "-o", str(trace), sys.executable, "-c", TOLD]
    subprocess.run([*command, str(root)], check=True)
    unsynced: set[str] = set()
    told = 0
    for line in trace.read_text().splitlines():
        found = re.search(
            rf"(\w+)\((?:\d+|AT_FDCWD)<[^>]*>, \"{root}/(responses.db[-a-z]*)\", \S*O_CREAT", line
        )
        if found and not (root / found[2]).name.endswith(("-shm", "-reserve")):
            unsynced.add("store")
        if (found := re.search(rf"(\w+)\(\d+<({root}[^>]*)>", line)) is None:
            continue
        name = found[2].rpartition("/")[2]
        if name == "told":
            assert not unsynced, line
            told += 1
        elif found[1].endswith("sync"):
            unsynced.discard(name)
        elif found[1] in ("pwrite64", "write") and name in ("responses.db", "responses.db-wal"):
            unsynced.add(name)
    assert told == 2


BLOCKS = """
import itertools, pathlib, sys
from maple.engine.prefix_disk.store import PrefixStore

store = PrefixStore(pathlib.Path(sys.argv[1]), max_bytes=3_000_000)
store.open("maple-0", "test/1")
tag = store.names.tag("me")
for number in itertools.count():
    names = store.names.chain(tag, [number % 97] * 64 * 5)
    for name in names:
        store.write((name, number % 2 == 0), name[-8:].encode() * 5000)
        print(number, flush=True)
    store.touch((name, number % 3 == 0) for name in names)
    store.note_session("me", str(number % 7), names)
    if number % 11 == 10:
        store.forget_session("me", str(number % 5))
"""


def test_no_killed_writer_leaves_a_wrong_block(tmp_path: pathlib.Path) -> None:
    """Killed in the middle of writing, trimming or removing blocks, by a clock of its own: the next one opens, and
    what it finds is what was written under that name.
    """
    dice = random.Random(18)  # noqa: S311 -- seeded, no secret
    found = 0
    for _ in range(CASES):
        command = [sys.executable, "-c", BLOCKS, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(dice.randint(0, 150)):
                writer.stdout.readline()
            time.sleep(dice.random() / 1000)  # anywhere between two lines, too
            writer.kill()
        store = PrefixStore(tmp_path, max_bytes=3_000_000)
        store.open("maple-0", "test/1")
        assert store.nbytes <= 3_000_000
        for number in range(97):
            for name in store.names.chain(store.names.tag("me"), [number] * 64 * 5):
                for sliding in (False, True):
                    block = store.read((name, sliding), 40_000)
                    assert block is None or block == name[-8:].encode() * 5000
                    found += block is not None
        assert not store.damaged
    assert found
