"""Answers kept in memory: each key's own, bounded in bytes and in time."""

from __future__ import annotations

import asyncio

from maple_protocols.adapter import Kept

from maple.memory_store import MemoryStore


def kept(name: str, size: int = 10) -> Kept:
    return Kept(id=name, created=1, items=({"id": "i", "text": "x" * size},), body={"id": name, "output": []})


def test_an_answer_comes_back_as_it_was_to_its_owner_alone() -> None:
    """Until it is deleted."""

    async def run() -> None:
        store = MemoryStore()
        await store.put("a", kept("r"))
        assert await store.get("a", "r") == kept("r")
        assert await store.get("b", "r") is None
        assert (await store.delete("b", "r"), await store.delete("a", "r")) == (False, True)
        assert await store.get("a", "r") is None

    asyncio.run(run())


def test_the_oldest_go_where_there_is_no_room() -> None:
    """The bound holds for all owners together; what is larger than all of it is not kept."""

    async def run() -> None:
        store = MemoryStore(most_bytes=2_500)
        for name in ("one", "two", "three"):
            await store.put(name, kept(name, 1_000))
        await store.put("four", kept("four", 3_000))
        found = [await store.get(name, name) is not None for name in ("one", "two", "three", "four")]
        assert found == [False, True, True, False]

    asyncio.run(run())


def test_answers_go_with_time() -> None:
    """After so many seconds they are gone, looked at or not."""

    async def run() -> None:
        store = MemoryStore(seconds=0)
        await store.put("a", kept("r"))
        assert await store.get("a", "r") is None

    asyncio.run(run())
