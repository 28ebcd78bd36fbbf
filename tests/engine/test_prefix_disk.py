"""Prefixes on disk behind a real engine: found after a restart, whatever becomes of the files and of the disk."""

from __future__ import annotations

import asyncio
import json
import pathlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from maple_testing.engine import collect, greedy_job
from maple_testing.guard import HANG_GUARD, comes_about

from maple.engine.admission import QueueLimits
from maple.engine.errors import SessionUnknown
from maple.engine.kv.prefix_tree import BLOCK
from maple.engine.prefix_disk.disk import PrefixDisk
from maple.engine.prefix_disk.store import PrefixStore
from maple.engine.worker import ThreadedEngine
from maple.native.library import Unavailable, available
from maple.native.loader import KernelOptions, native_loader
from maple.native.weights import NativeSource

pytestmark = pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="the kernels are not built here: torch serves alone"
)

Start = Callable[..., AbstractAsyncContextManager[ThreadedEngine]]
WHOLE = 599 // BLOCK * BLOCK
"""What is found of 600 ids: whole blocks of all but the last id."""


class Keys:
    """Keys by their owners, which may change."""

    required = True

    def __init__(self, **keys: str) -> None:
        self.keys = keys
        self._listeners: list[Callable[[], None]] = []

    def identities(self) -> Mapping[str, bytes]:
        return {owner: key.encode() for owner, key in self.keys.items()}

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def change(self, **keys: str) -> None:
        self.keys = keys
        for changed in self._listeners:
            changed()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "prefixes"


@pytest.fixture
def start(golden_folder: pathlib.Path, folder: pathlib.Path) -> Start:
    """Engines over one folder of prefixes, each as after a restart."""

    @asynccontextmanager
    async def run(
        *, keys: Keys | None = None, shared: bool = False, max_bytes: int = 1 << 30, **options: Any
    ) -> AsyncIterator[ThreadedEngine]:
        defaults = {"threads": 2, "slots": 4, "kv_cache_mb": 16, "prefix_cache_mb": 8}
        kernels = KernelOptions(**{**defaults, **options})
        disk = PrefixDisk(PrefixStore(folder, max_bytes=max_bytes, owners=keys, shared=shared), keys)
        engine = ThreadedEngine(
            native_loader(NativeSource(source=str(golden_folder / "mlx-2bit")), kernels),
            limits=QueueLimits(slots=4, depth=8),
            prefix_disk=disk,
        )
        engine.start()
        await engine.loaded()
        try:
            yield engine
        finally:
            disk.drain(HANG_GUARD)  # all is written, however busy the machine is
            await engine.close()

    return run


@pytest.fixture(scope="module")
def ids(golden_folder: pathlib.Path) -> list[int]:
    prompts = json.loads((golden_folder / "prompts.json").read_text())["prompts"]
    generator = random.Random(5)  # noqa: S311 -- seeded, no secret
    return [generator.choice(prompts[2]) for _ in range(600)]


def files(folder: pathlib.Path, part: str = "*") -> list[pathlib.Path]:
    return sorted(folder.glob(f"*/*/{part}/*"))


def owners(folder: pathlib.Path) -> int:
    return len([*folder.glob("*/*")])


async def cached(engine: ThreadedEngine, ids: list[int], **changes: Any) -> tuple[str, int]:
    """The greedy text, and how many ids of the prompt were found."""
    text, finish = await collect(engine.submit(greedy_job(ids, **changes)))
    return text, finish.cached_tokens


async def test_a_prompt_is_computed_once_in_its_life(
    start: Start, folder: pathlib.Path, ids: list[int]
) -> None:
    """After a restart its whole blocks are read, with the same text; the sliding parts were written near its end."""
    async with start() as engine:
        text, none = await cached(engine, ids)
        assert none == 0
    assert {path.stat().st_mode & 0o777 for path in files(folder)} == {0o600}
    assert len(files(folder, "full")) == 600 // BLOCK
    assert 0 < len(files(folder, "sliding")) <= 3
    async with start() as engine:
        assert await cached(engine, ids) == (text, WHOLE)
        stats = engine.stats()
        assert stats.prefix_disk_read_blocks >= WHOLE // BLOCK
        assert stats.prefix_disk_bytes > 0
        assert await cached(engine, [*ids[:300], 7, *ids[301:]], max_tokens=1) != (text, 0)


async def test_a_message_s_end_is_gone_on_from(start: Start, ids: list[int]) -> None:
    """What shares the first message alone finds it, though the first conversation was long."""
    opening = [*ids[:199], 2]  # an end of sequence closes a message
    async with start() as engine:
        await cached(engine, [*opening, *ids[200:]])
    async with start() as engine:
        _, found = await cached(engine, [*opening, *reversed(ids[200:])])
        assert found == 200 // BLOCK * BLOCK


async def test_what_leaves_memory_comes_back(start: Start, ids: list[int]) -> None:
    """A sweep of other prompts empties a small memory; the first is read again without a restart."""
    async with start(kv_cache_mb=2, prefix_cache_mb=1) as engine:
        text, _ = await cached(engine, ids)
        for number in range(12):
            await cached(engine, [number, *ids[1:]])
        assert engine.stats().prefix_cache_evictions > 0
        before = engine.stats().prefix_disk_read_blocks
        assert await cached(engine, ids) == (text, WHOLE)
        assert engine.stats().prefix_disk_read_blocks > before


async def test_owners_never_share(start: Start, ids: list[int]) -> None:
    """Nor does the same owner under another key; all do where the setting says so."""
    keys = Keys(ann="a", bob="b")
    async with start(keys=keys) as engine:
        await cached(engine, ids, owner="ann")
    async with start(keys=Keys(ann="other", bob="b")) as engine:
        for owner in ("bob", "ann"):
            assert (await cached(engine, ids, owner=owner))[1] == 0
    async with start(keys=keys, shared=True) as engine:
        await cached(engine, ids, owner="ann")
    async with start(keys=keys, shared=True) as engine:
        assert (await cached(engine, ids, owner="bob"))[1] == WHOLE


async def test_blocks_go_with_their_key(start: Start, folder: pathlib.Path, ids: list[int]) -> None:
    """When the keys are read anew, and at a start; nobody else's do."""
    keys = Keys(ann="a", bob="b", cid="c")
    async with start(keys=keys) as engine:
        for owner in ("ann", "bob", "cid"):
            await cached(engine, ids, owner=owner)
        await comes_about(lambda: owners(folder) == 3)
        keys.change(ann="a", bob="b")
        await comes_about(lambda: owners(folder) == 2)
    async with start(keys=Keys(bob="b")) as engine:
        await comes_about(lambda: owners(folder) == 1)
        assert (await cached(engine, ids, owner="bob"))[1] == WHOLE


async def test_a_deleted_session_takes_its_blocks(start: Start, folder: pathlib.Path, ids: list[int]) -> None:
    """Not those that another session has too; after a restart as well as before."""
    async with start() as engine:
        await cached(engine, ids, session_id="a")
        await cached(engine, [*ids[:256], *reversed(ids)], session_id="b")
        await engine.delete_session("", "a")
        assert len(files(folder, "full")) == (256 + 600) // BLOCK
    async with start() as engine:
        with pytest.raises(SessionUnknown):  # neither live nor saved, and yet gone
            await engine.delete_session("", "b")
        assert not [*files(folder, "full"), *files(folder, "sliding")]


async def test_a_session_is_deleted_however_much_waits(
    start: Start, folder: pathlib.Path, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be written may be dropped where there is too much of it; what is to be removed is not."""
    async with start() as engine:
        await cached(engine, ids, session_id="a")
        await comes_about(lambda: bool(files(folder, "sessions")))
    monkeypatch.setattr("maple.engine.prefix_disk.outbox._MOST_PENDING", 0)
    async with start() as engine:
        await comes_about(lambda: engine.stats().prefix_disk_bytes > 0)
        with pytest.raises(SessionUnknown):
            await engine.delete_session("", "a")
        assert not [*files(folder, "full"), *files(folder, "sliding")]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "swapped", "linked", "other key"])
async def test_a_damaged_block_is_a_miss(
    start: Start, folder: pathlib.Path, ids: list[int], damage: str
) -> None:
    """It is removed, what is before it is used, and the text is the same."""
    async with start() as engine:
        text, _ = await cached(engine, ids)
    blocks = files(folder, "full")
    victim, other = blocks[3], blocks[4]
    content = victim.read_bytes()
    if damage == "flipped":
        victim.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    elif damage == "cut":
        victim.write_bytes(content[:-1])
    elif damage == "empty":
        victim.write_bytes(b"")
    elif damage == "swapped":
        victim.write_bytes(other.read_bytes())
    elif damage == "linked":
        victim.unlink()
        victim.symlink_to(other)
    else:
        (folder / "secret").write_bytes(bytes(32))
        for path in files(folder):
            path.rename(path.with_name("0" * 32 if path is victim else path.name))
    async with start() as engine:
        again, found = await cached(engine, ids)
        assert (again, found < WHOLE) == (text, True)
        assert engine.stats().prefix_disk_damaged_blocks == (damage != "other key")


async def test_formats_lie_beside_each_other(start: Start, ids: list[int]) -> None:
    """Another KV format finds nothing of the first and takes nothing from it, at the same time."""
    async with start() as first:
        text, _ = await cached(first, ids)
        async with start(kv_dtype="f32") as second:
            other, found = await cached(second, ids)
            assert found == 0
    async with start() as first, start(kv_dtype="f32") as second:
        assert await cached(first, ids) == (text, WHOLE)
        assert await cached(second, ids) == (other, WHOLE)


async def test_two_servers_share_a_folder(start: Start, ids: list[int]) -> None:
    """What one has written the other finds, started before."""
    async with start() as first, start() as second:
        text, _ = await cached(first, ids)
        await comes_about(lambda: first.stats().prefix_disk_written_blocks >= 600 // BLOCK + 1)
        assert (await cached(second, ids)) == (text, WHOLE)
        texts = await asyncio.gather(*(cached(one, [n, *ids]) for n in range(8) for one in (first, second)))
        assert texts[::2] == [(text, texts[2 * n][1]) for n, (text, _) in enumerate(texts[1::2])]


async def test_a_sweep_spares_what_was_of_use_again(
    start: Start, folder: pathlib.Path, ids: list[int]
) -> None:
    """A small disk keeps the conversation that goes on, not the prompts that never came again."""
    async with start() as engine:
        await cached(engine, ids, session_id="s")
    size = sum(path.stat().st_size for path in files(folder))
    async with start(max_bytes=size * 3) as engine:
        for number in range(12):
            await cached(engine, [number, *ids[1:]])
            assert engine.stats().prefix_disk_bytes <= size * 4
    async with start(max_bytes=size * 3) as engine:
        assert (await cached(engine, ids))[1] == WHOLE
