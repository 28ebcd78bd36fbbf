"""Bringing a prompt's blocks back from the disk before it is computed, beside the steps of what runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import attrs

from maple.engine.errors import SessionBusy
from maple.engine.file_threads import FileThreads
from maple.engine.kv.outside import BlockSource, Resident
from maple.engine.kv.prefix_tree import BLOCK
from maple.engine.prefix_disk.outbox import oldest_needed
from maple.engine.prefix_disk.store import PrefixStore
from maple.engine.prefix_disk.trouble import Trouble

T = TypeVar("T")

READ_SECONDS = 5.0
"""In which a batch of blocks must come: a slower disk brings little more than the prefill computes."""
_AT_ONCE = 4
"""Reads at a time: more of them bring nothing sooner, and one owner's are refused beyond some more."""
_BATCH = 32
_LEAST = 2
"""Blocks that have to be gained."""
_DAMAGED = 8
"""So often is another way looked for where a block was damaged."""


class OnThread(Protocol):
    """Runs a function on the engine's thread, between two steps."""

    async def __call__(self, function: Callable[[], T]) -> T:
        """What it returns or raises."""
        ...


@attrs.frozen
class _Plan:
    """Blocks ``first`` to ``depth`` are to be read, by their ``names``, and some of their ``sliding`` parts."""

    names: Sequence[str]
    first: int
    depth: int
    sliding: frozenset[int]


@attrs.frozen
class _Batch:
    """Blocks from ``first`` on, as far as they are sound, and the sliding parts among them."""

    first: int
    full: Sequence[memoryview]
    sliding: Mapping[int, memoryview]


class PrefixReader:
    """Finds the longest chain, in memory and then on disk, and puts what is missing into memory.

    Made on the engine's thread, used on the event loop. A disk that does not answer in time is left alone for a while.
    """

    def __init__(self, store: PrefixStore, source: BlockSource, trouble: Trouble) -> None:
        self._store = store
        self._source = source
        self._trouble = trouble
        self._window = source.window
        self._sizes = {part: source.block_bytes(sliding=part) for part in (False, True)}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._threads = FileThreads(most=16, timeout=READ_SECONDS, hangs=None)

    def close(self) -> None:
        """Whoever waits for a file gets ShuttingDown."""
        self._threads.close()

    async def fetch(self, call: OnThread, owner: str, ids: Sequence[int], left: Callable[[], bool]) -> None:
        """Have as much of the prompt in memory as there is anywhere; nothing more once its client has ``left``."""
        try:
            for _ in range(_DAMAGED):
                resident = await call(lambda: self._source.resident(owner, ids))
                plan = await self._in_turn(owner, lambda: self._planned(owner, ids, resident))  # noqa: B023
                if plan is None or await self._bring(call, owner, ids, plan, left):
                    break
            self._trouble.over("read")
        except SessionBusy:
            self._trouble.arise("read", "the disk does not answer")
        except OSError as error:
            self._trouble.arise("read", error.strerror or str(error))

    async def _in_turn(self, owner: str, function: Callable[[], T]) -> T:
        """What the function returns, on a thread. Raises SessionBusy where the disk does not answer."""
        async with self._turns:
            if self._trouble.rests("read"):
                raise SessionBusy
            return await self._threads.run(owner, function)

    def _planned(self, owner: str, ids: Sequence[int], resident: Resident) -> _Plan | None:
        """What to read so that most ids are there to go on from; None where little is gained."""
        self._store.wait_until_ready(READ_SECONDS / 2)
        most = (len(ids) - 1) // BLOCK
        names = self._store.names.chain(self._store.names.tag(owner), ids[: most * BLOCK])
        depth = resident.depth
        while depth < most and self._store.has((names[depth], False)):
            depth += 1
        while depth >= resident.usable // BLOCK + _LEAST:
            missing = set(range(oldest_needed(depth, self._window), depth)) - resident.sliding
            gap = next(
                (i for i in sorted(missing, reverse=True) if not self._store.has((names[i], True))), None
            )
            if gap is None:
                return _Plan(names, min(missing | {resident.depth}), depth, frozenset(missing))
            depth = gap  # no token behind it can do without it, but for those that do not see it
        return None

    async def _bring(
        self, call: OnThread, owner: str, ids: Sequence[int], plan: _Plan, left: Callable[[], bool]
    ) -> bool:
        """Read and insert, the next batch while this one goes in; False where a block was damaged."""
        firsts = range(plan.first, plan.depth, _BATCH)
        reading = self._reading(owner, plan, plan.first)
        for first in firsts:
            batch = await reading
            whole = len(batch.full) == min(_BATCH, plan.depth - first)
            if whole and first + _BATCH < plan.depth:
                reading = self._reading(owner, plan, first + _BATCH)
            if batch.full:
                there = await call(
                    lambda: self._source.insert(owner, ids, batch.first, batch.full, batch.sliding)  # noqa: B023
                )
                if there < first + len(batch.full) or left():
                    return True
            if not whole:
                return False
        return True

    def _reading(self, owner: str, plan: _Plan, first: int) -> asyncio.Task[_Batch]:
        return asyncio.get_running_loop().create_task(self._in_turn(owner, lambda: self._read(plan, first)))

    def _read(self, plan: _Plan, first: int) -> _Batch:
        full: list[memoryview] = []
        sliding: dict[int, memoryview] = {}
        for index in range(first, min(first + _BATCH, plan.depth)):
            block = self._store.read((plan.names[index], False), self._sizes[False])
            if block is None:
                break
            if index in plan.sliding:
                part = self._store.read((plan.names[index], True), self._sizes[True])
                if part is None:
                    break
                sliding[index] = part
            full.append(block)
        return _Batch(first, full, sliding)
