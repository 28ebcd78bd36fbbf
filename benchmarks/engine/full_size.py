"""The engine under many users on a full-size checkpoint: batches, pauses, reuse, restarts, memory.

    python benchmarks/engine/full_size.py MODEL [--only batch pause reuse restart memory] [--threads 2]
        [--prompts 32] [--kv-mb 1024] [--json OUT] [--picture pauses.svg]

MODEL is a folder that the native kernels load. Prompts are random ids, so that the machine's speed is all that counts.
`restart` kills its first process with SIGKILL after a save. Every part starts an engine of its own, one at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from maple.engine.admission import QueueLimits
from maple.engine.api import Finish, Job, Sampling
from maple.engine.native_loader import KernelOptions, native_loader
from maple.engine.session_files import SessionFiles
from maple.engine.worker import ThreadedEngine
from maple.native.load import NativeSource

PARTS = ("batch", "pause", "reuse", "restart", "memory")
HISTORY, REASONING, NEW, JOINING = 2000, 300, 60, 4096
TOKENS = 32


@asynccontextmanager
async def engine(
    options: argparse.Namespace, *, slots: int = 8, sessions: pathlib.Path | None = None
) -> AsyncIterator[ThreadedEngine]:
    kernels = KernelOptions(
        threads=options.threads, slots=slots, kv_cache_mb=options.kv_mb, prefix_cache_mb=options.kv_mb
    )
    files = None if sessions is None else SessionFiles(sessions, max_bytes=4 << 30)
    one = ThreadedEngine(
        native_loader(NativeSource(source=options.model, preload=True), kernels),
        limits=QueueLimits(slots=slots, depth=64),
        session_files=files,
    )
    one.start()
    await one.loaded()
    if one.error is not None:
        raise SystemExit(one.error)
    try:
        yield one
    finally:
        await one.close()


def ids(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1000, 150000) for _ in range(count)]


def job(prompt: list[int], tokens: int = TOKENS, session_id: str | None = None) -> Job:
    return Job(
        request_id="bench",
        prompt_ids=tuple(prompt),
        max_tokens=tokens,
        sampling=Sampling(temperature=0),
        session_id=session_id,
    )


class Run:
    """One request: when each of its ids came, its text, and its end."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.times: list[float] = []
        self.text = ""
        self.finish: Finish | None = None

    @property
    def first(self) -> float:
        return self.times[0] - self.begun

    @property
    def gaps(self) -> list[float]:
        times = sorted(set(self.times))
        return [later - earlier for earlier, later in itertools.pairwise(times)]


async def run(on: ThreadedEngine, what: Job, kept: Run | None = None) -> Run:
    kept = kept or Run()
    async for item in on.submit(what):
        if isinstance(item, Finish):
            kept.finish = item
        else:
            kept.text += item.text
            kept.times.extend([time.perf_counter()] * len(item.offsets))  # text may be held for a few ids
    return kept


async def batch(options: argparse.Namespace) -> dict[str, Any]:
    """Eight streams together against one alone, decoding only."""
    async with engine(options) as on:
        await run(on, job(ids(0, 64), 4))
        alone = await run(on, job(ids(1, 64)))
        together = await asyncio.gather(*(run(on, job(ids(2 + n, 64))) for n in range(8)))
    single = (len(alone.times) - 1) / (alone.times[-1] - alone.times[0])
    begin = max(one.times[0] for one in together)
    end = min(one.times[-1] for one in together)
    counted = sum(sum(begin < at <= end for at in one.times) for one in together)
    eight = counted / (end - begin)
    return {"single_tokens_per_s": single, "eight_tokens_per_s": eight, "ratio": eight / single}


async def pause(options: argparse.Namespace) -> dict[str, Any]:
    """A running stream while a long prompt joins."""
    async with engine(options) as on:
        await run(on, job(ids(0, 64), 4))
        stream = Run()
        running = asyncio.create_task(run(on, job(ids(1, 64), 64), stream))
        while len(stream.times) < 24:  # noqa: ASYNC110 - the stream is all there is to wait for
            await asyncio.sleep(0.01)
        joined = time.perf_counter()
        long = await run(on, job(ids(2, JOINING), 2))
        await running
    steady = sorted(later - earlier for earlier, later in itertools.pairwise(stream.times) if later < joined)
    if long.finish is None:
        raise SystemExit("the long prompt was not answered")
    chunk = long.finish.prefill_seconds / (JOINING / 512)
    middle, worst = steady[len(steady) // 2], max(stream.gaps)
    draw(stream, joined, options.picture)
    return {
        "steady_s": middle,
        "worst_s": worst,
        "chunk_s": chunk,
        "bound_s": 3 * middle + chunk,
        "prefill_tokens_per_s": JOINING / long.finish.prefill_seconds,
    }


def draw(stream: Run, joined: float, target: pathlib.Path | None) -> None:
    """A bar for each token of the stream: how long after the one before it came; red since the prompt joined."""
    if target is None:
        return
    top = max(stream.gaps)
    bars = []
    for place, (at, gap) in enumerate(zip(sorted(set(stream.times))[1:], stream.gaps, strict=True)):
        height = 240 * gap / top
        colour = "#c0392b" if at >= joined else "#2c7a4b"
        bars.append(
            f'<rect x="{60 + 10 * place}" y="{260 - height:.1f}" width="8" height="{height:.1f}" fill="{colour}"/>'
        )
    width = 80 + 10 * len(bars)
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="300" font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="300" fill="white"/>{"".join(bars)}'
        f'<text x="8" y="24">{top:.2f} s</text><text x="8" y="260">0</text>'
        f'<text x="60" y="286">tokens of a running stream; red: since a {JOINING}-token prompt joined</text></svg>\n'
    )


async def reuse(options: argparse.Namespace) -> dict[str, Any]:
    """Time to the first token of a second turn, in four forms, against a cold one of the same length."""
    found = {}
    async with engine(options) as on:
        await run(on, job(ids(0, 64), 4))
        history = ids(1, HISTORY)
        kept, answer = history[: HISTORY - REASONING - 100], history[HISTORY - 100 :]
        cold = await run(on, job(history, 2))
        forms = {
            "reasoning_sent_back": [*history, *ids(2, NEW)],
            "reasoning_dropped": [*kept, *answer, *ids(3, NEW)],
            "system_prompt_shared": [*history, *ids(4, NEW)],
            "last_message_edited": [*history[: HISTORY - 5], *ids(5, NEW)],
        }
        for name, prompt in forms.items():
            warm = await run(on, job(prompt, 2))
            if warm.finish is None:
                raise SystemExit(f"{name} was not answered")
            found[name] = {
                "s": warm.first,
                "ratio": cold.first / warm.first,
                "cached": warm.finish.cached_tokens,
            }
    return {"cold_s": cold.first, **found}


async def before(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """The first half of `restart`: a conversation is saved; what it would go on with is printed; SIGKILL."""
    async with engine(options, sessions=folder) as on:
        await run(on, job(ids(1, HISTORY), 8, "bench"))
        manifest = await on.save_session("", "bench")
        warm = await run(on, job([*ids(1, HISTORY), *ids(2, NEW)], 8, "bench"))
        told = {"text": warm.text, "s": warm.first, "saved_tokens": manifest.tokens, "bytes": manifest.bytes}
        print(json.dumps(told), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def restart(options: argparse.Namespace) -> dict[str, Any]:
    """Save, kill, load, go on: the same text, and how long its first token took."""
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, __file__, options.model, "--before", name]
        command += ["--threads", str(options.threads), "--kv-mb", str(options.kv_mb)]
        first = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: ASYNC221 - nothing else runs
        if first.returncode != -signal.SIGKILL:
            raise SystemExit(f"the first half ended by itself: {first.returncode}")
        told = json.loads(first.stdout.splitlines()[-1])
        async with engine(options, sessions=pathlib.Path(name)) as on:
            await run(on, job(ids(0, 64), 4))
            loaded = await on.load_session("", "bench")
            again = await run(on, job([*ids(1, HISTORY), *ids(2, NEW)], 8, "bench"))
        if again.finish is None:
            raise SystemExit("the conversation was not answered")
        return {
            "saved": told,
            "load_ms": loaded.load_ms,
            "after_s": again.first,
            "ratio_to_warm": again.first / told["s"],
            "cached": again.finish.cached_tokens,
            "same_text": again.text == told["text"],
        }


async def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Long prompts all at once: answered in order, within the budget."""
    peak, ended, began = 0, [], time.perf_counter()
    async with engine(options) as on:
        await run(on, job(ids(0, 64), 4))
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def one(number: int) -> None:
            nonlocal peak
            async for _ in on.submit(job(ids(100 + number, 4000), 2)):
                peak = max(peak, on.stats().kv_bytes)
            ended.append(number)

        await asyncio.gather(*map(one, range(options.prompts)))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    return {
        "prompts": options.prompts,
        "in_order": ended == sorted(ended),
        "kv_peak_mib": peak / (1 << 20),
        "budget_mib": options.kv_mb,
        "process_grew_mib": grown / 1024,
        "s": time.perf_counter() - began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("model")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--kv-mb", type=int, default=1024)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--picture", type=pathlib.Path)
    parser.add_argument("--before", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.before:
        asyncio.run(before(options, options.before))
    parts = {"batch": batch, "pause": pause, "reuse": reuse, "restart": restart, "memory": memory}
    found = {}
    for name in options.only:
        found[name] = asyncio.run(parts[name](options))
        print(json.dumps({name: found[name]}, indent=1), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
