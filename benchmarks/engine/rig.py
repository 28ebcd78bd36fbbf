"""What the parts share: how much each one runs, an engine to run it on, and the clock."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import pathlib
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs

from maple.engine.admission import QueueLimits
from maple.engine.api import Finish, Job, Sampling
from maple.engine.prefix_disk.disk import PrefixDisk
from maple.engine.prefix_disk.store import PrefixStore
from maple.engine.runner import LoadedEngine, Loader
from maple.engine.session_files import SessionFiles
from maple.engine.worker import ThreadedEngine
from maple.native.loader import KernelOptions, native_loader
from maple.native.weights import NativeSource


@attrs.frozen(kw_only=True)
class Sizes:
    """In tokens, but for the counts of ``prompts`` and ``rounds``. ``answers``: prompts whose first token is timed."""

    tokens: int = 32
    context: int = 128
    streamed: int = 96
    answers: tuple[int, ...] = (128, 1024)
    rounds: int = 5
    joining: int = 4096
    history: int = 2000
    reasoning: int = 300
    new: int = 60
    prompts: int = 32
    prompt: int = 4000
    agent: int = 20_000


QUICK = Sizes(
    tokens=64,
    streamed=64,
    answers=(64, 256),
    rounds=2,
    joining=1536,
    history=600,
    reasoning=100,
    prompts=6,
    prompt=600,
    agent=1500,
)
"""Small enough for the embedded model's context, and for a test."""


class Run:
    """One request: when each of its ids came, its pieces of text, and its end."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.times: list[float] = []
        self.pieces: list[tuple[float, str]] = []
        self.tokens = 0
        self.ended = 0.0
        self.finish: Finish | None = None

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    @property
    def first(self) -> float:
        return self.times[0] - self.begun

    @property
    def answered(self) -> float:
        """When something of the answer was there to read."""
        return self.pieces[0][0] if self.pieces else self.ended

    @property
    def gaps(self) -> list[float]:
        times = sorted(set(self.times))
        return [later - earlier for earlier, later in itertools.pairwise(times)]


@asynccontextmanager
async def engine(
    options: argparse.Namespace,
    *,
    slots: int = 8,
    sessions: pathlib.Path | None = None,
    prefixes: pathlib.Path | None = None,
    prefix_mb: int | None = None,
    endless: bool = True,
) -> AsyncIterator[ThreadedEngine]:
    """A loaded engine that has run once. An ``endless`` one's answers are as long as they may be: random prompts say
    nothing, and a model that was trained ends its answers to them at once.
    """
    kernels = KernelOptions(
        threads=options.threads,
        slots=slots,
        kv_cache_mb=options.kv_mb,
        prefix_cache_mb=options.kv_mb if prefix_mb is None else prefix_mb,
    )
    files = None if sessions is None else SessionFiles(sessions, max_bytes=4 << 30)
    loader = native_loader(NativeSource(source=options.model, preload=True), kernels)
    one = ThreadedEngine(
        without_ends(loader) if endless else loader,
        limits=QueueLimits(slots=slots, depth=64),
        session_files=files,
        prefix_disk=None if prefixes is None else PrefixDisk(PrefixStore(prefixes)),
    )
    one.start()
    await one.loaded()
    if one.error is not None:
        raise SystemExit(one.error)
    try:
        await run(one, job(ids(one, 0, 64), 4))
        yield one
    finally:
        await one.close()


def without_ends(loader: Loader) -> Loader:
    """The same model, no id of which ends an answer."""

    def load(cancelled: Callable[[], bool]) -> LoadedEngine:
        loaded = loader(cancelled)
        return attrs.evolve(loaded, served=attrs.evolve(loaded.served, eos_token_ids=()))

    return load


def ids(on: ThreadedEngine, seed: int, count: int) -> list[int]:
    if on.served is None:
        raise SystemExit("the engine has no model")
    chance, end = random.Random(seed), on.served.vocabulary
    return [chance.randrange(min(1000, end // 2), end) for _ in range(count)]


def job(prompt: list[int], tokens: int, session_id: str | None = None) -> Job:
    return Job(
        request_id="bench",
        prompt_ids=tuple(prompt),
        max_tokens=tokens,
        sampling=Sampling(temperature=0),
        session_id=session_id,
    )


async def run(on: ThreadedEngine, what: Job, kept: Run | None = None) -> Run:
    kept = kept or Run()
    async for item in on.submit(what):
        now = time.perf_counter()
        if isinstance(item, Finish):
            kept.finish, kept.ended, kept.tokens = item, now, item.completion_tokens
            continue
        if item.text:
            kept.pieces.append((now, item.text))
        kept.times.extend([now] * len(item.offsets))  # text may be held for a few ids
    return kept


def finish(of: Run) -> Finish:
    """How a run ended, which must have."""
    if of.finish is None:
        raise SystemExit("a request was not answered")
    return of.finish


def rate(of: Run) -> float:
    """Tokens a second, decoding only, by the engine's own clock."""
    ended = finish(of)
    if ended.completion_tokens < 2:
        raise SystemExit("the model ended its answer at once: there is no rate to measure")
    return (ended.completion_tokens - 1) / ended.decode_seconds


async def chunk_seconds(on: ThreadedEngine, prompt: list[int]) -> list[float]:
    """How long each chunk of a prompt takes with nothing beside it, told by its progress in the statistics."""
    running = asyncio.create_task(run(on, job(prompt, 1)))
    marks, done = [], 0
    while not running.done():
        reached = sum(one.done_tokens for one in on.stats().prefills)
        if reached > done:
            done = reached
            marks.append(time.perf_counter())
        await asyncio.sleep(0.001)
    alone = await running
    marks = [alone.begun, *marks, alone.ended]
    return [later - earlier for earlier, later in itertools.pairwise(marks)]
