"""Many random requests at once on the embedded model: each answer is the one it gets alone."""

from __future__ import annotations

import asyncio
import gc
import os
import pathlib
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from maple.engine.admission import QueueLimits
from maple.engine.api import Finish, Job, Piece, Sampling
from maple.engine.errors import EngineError, EngineOverloaded, PromptTooLong, SessionUnknown
from maple.engine.runner import LoadedEngine
from maple.engine.session_files import SessionFiles
from maple.engine.worker import ThreadedEngine
from maple.native.library import Unavailable, available
from maple.native.loader import KernelOptions, native_loader
from maple.native.runner import NativeRunner
from maple.native.weights import NativeSource

pytestmark = pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="the kernels are not built here: torch serves alone"
)

DEMO = pathlib.Path(__file__).parents[2] / "maple" / "demo"
SLOTS, DEPTH = 8, 64
REQUESTS = int(os.environ.get("STRESS_REQUESTS", "120"))
"""Enough for every kind of neighbour; a soak asks for more."""
PREFIX_MB = 4
MIB = 1 << 20


@attrs.frozen(kw_only=True)
class Wish:
    """A job, and after how many pieces its client leaves (None: it stays)."""

    job: Job
    leaves_after: int | None = None


class Engines:
    """Engines over the embedded model, and the runners behind them."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.runner: NativeRunner
        self._folder = folder

    async def start(self, *, slots: int, depth: int, prefix_mb: int) -> ThreadedEngine:
        kernels = KernelOptions(threads=2, slots=slots, kv_cache_mb=24, prefix_cache_mb=prefix_mb)
        load = native_loader(NativeSource(source=str(DEMO)), kernels)

        def remembered(cancelled: Callable[[], bool]) -> LoadedEngine:
            loaded = load(cancelled)
            assert isinstance(loaded.runner, NativeRunner)
            self.runner = loaded.runner
            return loaded

        files = SessionFiles(self._folder / "sessions", max_bytes=256 * MIB)
        engine = ThreadedEngine(remembered, limits=QueueLimits(slots=slots, depth=depth), session_files=files)
        engine.start()
        await engine.loaded()
        assert engine.error is None
        return engine


def make_wishes(count: int, vocabulary: int) -> list[Wish]:
    """Prompts that begin alike or not, of 1 to 700 ids, sampled in every way, some of them abandoned."""
    chance = random.Random(11)  # noqa: S311 - the same requests every time
    text = [chance.randrange(100, vocabulary) for _ in range(2000)]
    wishes = []
    for number in range(count):
        start, length = chance.choice((0, 0, 0, 500, 900)), int(700 ** chance.random())
        own = [chance.randrange(100, vocabulary) for _ in range(chance.randrange(30))]
        sampling = Sampling(
            temperature=chance.choice((0.0, 0.7, 1.5)),
            top_k=chance.choice((0, 5, 20)),
            top_p=chance.choice((0.5, 0.95, 1.0)),
            repetition_penalty=chance.choice((1.0, 1.0, 1.3)),
            seed=number,
        )
        job = Job(
            request_id=str(number),
            prompt_ids=(*text[start : start + length], *own),
            max_tokens=chance.randrange(1, 24),
            sampling=sampling,
            stop=chance.choice(((), (), ("e",), ("the", "\n"))),
            owner=chance.choice(("", "", "other")),
            session_id=chance.choice((None, None, f"s{chance.randrange(6)}")),
        )
        wishes.append(Wish(job=job, leaves_after=chance.choice((None, None, None, None, 0, 2))))
    return wishes


async def answer(engine: ThreadedEngine, wish: Wish) -> tuple[str, str, int] | None:
    """Text, reason and tokens; None where the client left."""
    ticket = engine.submit(wish.job)
    if wish.leaves_after == 0:
        await asyncio.sleep(0)
        ticket.cancel()
        return None
    pieces: list[str] = []
    async for item in ticket:
        if isinstance(item, Finish):
            assert item.cached_tokens < item.prompt_tokens == len(wish.job.prompt_ids)
            return "".join(pieces), item.reason, item.completion_tokens
        assert isinstance(item, Piece)
        pieces.append(item.text)
        if wish.leaves_after is not None and len(pieces) >= wish.leaves_after:
            ticket.cancel()
            return None
    raise AssertionError("a ticket ended without a Finish")


async def patient(
    engine: ThreadedEngine, wish: Wish, crowd: asyncio.Semaphore
) -> tuple[str, str, int] | None:
    """The same from a client that comes again when the queue is full."""
    async with crowd:
        while True:
            try:
                return await answer(engine, wish)
            except EngineOverloaded:
                await asyncio.sleep(0.02)


async def disturb(engine: ThreadedEngine, rounds: int) -> int:
    """Save, load and delete sessions, and ask for what cannot be; how often it went well."""
    chance, went_well = random.Random(12), 0  # noqa: S311 - as above
    for _ in range(rounds):
        session_id = f"s{chance.randrange(6)}"
        act = chance.choice(
            (engine.save_session, engine.save_session, engine.load_session, engine.delete_session)
        )
        try:
            await act("", session_id)
            went_well += 1
        except (SessionUnknown, EngineOverloaded):
            pass
        with pytest.raises((PromptTooLong, EngineOverloaded)):
            await answer(engine, Wish(job=attrs.evolve(BAD, request_id="bad")))
        await asyncio.sleep(0.02)
    return went_well


BAD = Job(request_id="", prompt_ids=(5,) * 100, max_tokens=10_000_000, sampling=Sampling())


def resident_mib() -> float:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def descriptors() -> int:
    return len(list(pathlib.Path("/proc/self/fd").iterdir()))


async def flood(engine: ThreadedEngine, wishes: Sequence[Wish]) -> tuple[list[Any], int]:
    """All at once, disturbed meanwhile; the answers and how many of the disturbances went well."""
    crowd = asyncio.Semaphore(SLOTS + DEPTH + 8)  # a few too many; hundreds would only keep the loop busy
    disturbing = asyncio.create_task(disturb(engine, len(wishes) // 4))
    answers = await asyncio.gather(*(patient(engine, wish, crowd) for wish in wishes))
    return answers, await disturbing


async def until_idle(engine: ThreadedEngine) -> None:
    while engine.stats().running or engine.stats().waiting:  # noqa: ASYNC110 -- nothing tells of the last step
        await asyncio.sleep(0.001)


async def test_each_answer_is_the_one_it_gets_alone(tmp_path: pathlib.Path) -> None:
    """Neighbours, reuse, eviction, sessions and failures change no answer, and everything comes back."""
    engines = Engines(tmp_path)
    engine = await engines.start(slots=SLOTS, depth=DEPTH, prefix_mb=PREFIX_MB)
    assert engine.served is not None
    wishes = make_wishes(REQUESTS, engine.served.vocabulary)
    await flood(engine, wishes[:40])  # so that buffers have their size
    await until_idle(engine)
    gc.collect()
    threads, files, memory = threading.active_count(), descriptors(), resident_mib()

    answers, went_well = await flood(engine, wishes)
    await until_idle(engine)
    gc.collect()

    stats = engine.stats()
    assert went_well > 0
    assert stats.prefix_cache_hits > REQUESTS // 10
    assert stats.prefix_cache_evictions > 0
    assert stats.kv_bytes <= PREFIX_MB * MIB
    assert (threading.active_count() - threads, descriptors() - files) <= (3, 0)  # a pool for files may grow
    assert resident_mib() - memory < 64
    await engine.close()

    alone = await engines.start(slots=1, depth=0, prefix_mb=0)
    for wish, given in zip(wishes, answers, strict=True):
        if given is not None:
            assert await answer(alone, attrs.evolve(wish, leaves_after=None)) == given
    assert alone.stats().kv_bytes == 0
    await alone.close()


async def test_prompts_that_arrive_at_once_are_computed_once(tmp_path: pathlib.Path) -> None:
    """Of eight equal prompts, seven find all but the last id."""
    engine = await Engines(tmp_path).start(slots=SLOTS, depth=DEPTH, prefix_mb=PREFIX_MB)
    prompt = tuple(range(100, 800))
    jobs = [
        Job(request_id=str(n), prompt_ids=prompt, max_tokens=4, sampling=Sampling(temperature=0))
        for n in range(8)
    ]

    async def finish(job: Job) -> Finish:
        *_, last = [item async for item in engine.submit(job)]
        assert isinstance(last, Finish)
        return last

    finishes = await asyncio.gather(*map(finish, jobs))
    assert sorted(one.cached_tokens for one in finishes) == [0, *[len(prompt) - 1] * 7]
    assert engine.stats().cached_tokens == 7 * (len(prompt) - 1)
    await engine.close()


async def test_memory_is_waited_for_in_order(tmp_path: pathlib.Path) -> None:
    """With memory for few, many are answered first come first served, and it is never passed."""
    engines = Engines(tmp_path)
    engine = await engines.start(slots=SLOTS, depth=DEPTH, prefix_mb=PREFIX_MB)
    ended: list[int] = []
    peak = 0

    async def run(number: int) -> None:
        nonlocal peak
        prompt = tuple(100 + (number * 7 + at) % 900 for at in range(2000))
        job = Job(request_id=str(number), prompt_ids=prompt, max_tokens=1, sampling=Sampling(temperature=0))
        try:
            async for _ in engine.submit(job):
                peak = max(peak, engine.stats().kv_bytes)
        except EngineError as error:
            raise AssertionError(f"{number} failed") from error
        ended.append(number)

    await asyncio.gather(*map(run, range(24)))
    assert ended == sorted(ended)
    assert 0 < peak <= 24 * MIB
    await engine.close()
