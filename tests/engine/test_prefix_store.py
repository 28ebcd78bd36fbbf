"""The folder of blocks by itself: what sessions have there, several servers' limits, and many readers at once."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import structlog.testing

from maple.engine.kv.outside import BlockObserver, Resident
from maple.engine.prefix_disk.least_used import GRACE
from maple.engine.prefix_disk.reader import PrefixReader
from maple.engine.prefix_disk.store import PrefixStore
from maple.engine.prefix_disk.trouble import Trouble

T = TypeVar("T")

BLOCK_BYTES = 1000


def opened(folder: pathlib.Path, blocks: int, clock: Callable[[], float]) -> PrefixStore:
    """A store with room for so many blocks."""
    store = PrefixStore(folder, max_bytes=blocks * (BLOCK_BYTES + 300), clock=clock)
    store.open("maple-0", "test/1")
    return store


def written(store: PrefixStore, first: int, blocks: int, *, lasting: bool = False) -> list[str]:
    """So many blocks of one path."""
    names = store.names.chain(store.names.tag("me"), [first] * 64 * blocks)
    for name in names:
        store.write((name, False), bytes(BLOCK_BYTES))
    store.touch((name, lasting) for name in names)
    return names


def there(folder: pathlib.Path) -> int:
    return len([*folder.glob("*/*/full/*")])


def test_a_session_outlives_none_of_its_blocks(tmp_path: pathlib.Path) -> None:
    """However much is written since: what is left of them goes when the session is deleted."""
    now = [time.time()]
    store = opened(tmp_path, 100, lambda: now[0])
    store.note_session("me", "s", written(store, 1, 20, lasting=True))
    for number in range(2, 40):
        now[0] += GRACE / 100
        written(store, number, 10)
    names = store.names.chain(store.names.tag("me"), [1] * 64 * 20)
    left = there(tmp_path)
    kept = sum(store.has((name, False)) for name in names)
    assert kept
    store.forget_session("me", "s")
    assert there(tmp_path) == left - kept


def test_a_session_has_what_each_of_its_sequences_had(tmp_path: pathlib.Path) -> None:
    """Of an edited or shortened conversation too, not only the last one's."""
    store = opened(tmp_path, 100, lambda: 1e9)
    store.note_session("me", "s", written(store, 1, 5))
    store.note_session("me", "s", written(store, 2, 5))
    store.forget_session("me", "s")
    assert there(tmp_path) == 0


def test_servers_that_share_a_folder_share_its_limit(tmp_path: pathlib.Path) -> None:
    """Each looks now and then at what the others have written."""
    first, second = (opened(tmp_path, 100, lambda: 1e9) for _ in range(2))
    for number in range(60):
        for store in (first, second):
            written(store, 2 * number + (store is second), 3)
        assert there(tmp_path) <= 120


class Nothing:
    """A source of blocks that holds none."""

    window = 512

    def observe(self, observer: BlockObserver) -> None:
        raise NotImplementedError

    def block_bytes(self, *, sliding: bool) -> int:
        return BLOCK_BYTES << sliding

    def copy(self, block: int, *, sliding: bool) -> bytes:
        raise NotImplementedError

    def resident(self, owner: str, ids: Sequence[int]) -> Resident:
        return Resident(depth=0, sliding=frozenset(), usable=0)

    def insert(
        self,
        owner: str,
        ids: Sequence[int],
        first: int,
        full: Sequence[memoryview],
        sliding: Mapping[int, memoryview],
    ) -> int:
        raise NotImplementedError


async def test_many_readers_are_no_trouble(tmp_path: pathlib.Path) -> None:
    """Of one owner, while the store is being opened: each has its turn, and the disk counts as sound."""
    store = PrefixStore(tmp_path)
    reader = PrefixReader(store, Nothing(), Trouble())

    async def call(function: Callable[[], T]) -> T:
        return function()

    fetches = [asyncio.create_task(reader.fetch(call, "", [n] * 500, left=lambda: False)) for n in range(40)]
    with structlog.testing.capture_logs() as told:
        await asyncio.sleep(0)
        await asyncio.to_thread(store.open, "maple-0", "test/1")
        await asyncio.gather(*fetches)
    assert not told
