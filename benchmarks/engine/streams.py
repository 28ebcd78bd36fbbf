"""Streams beside one another: a batch, a long prompt that joins, busy neighbours, and more prompts than memory."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rig import Run, chunk_seconds, engine, finish, ids, job, rate, run

BUSY = "import os; above = os.getppid(); print(flush=True)\nwhile os.getppid() == above: sum(range(100_000))"
"""Ends with the process that started it, whatever became of that."""


async def batch(options: argparse.Namespace) -> dict[str, Any]:
    """Eight streams together against one alone, decoding only."""
    tokens = options.sizes.tokens
    async with engine(options) as on:
        alone = await run(on, job(ids(on, 1, 64), tokens))
        together = await asyncio.gather(*(run(on, job(ids(on, 2 + n, 64), tokens)) for n in range(8)))
    begin = max(one.times[0] for one in together)
    end = min(one.times[-1] for one in together)
    if end <= begin:
        raise SystemExit("a stream had ended before another began")
    counted = sum(sum(begin < at <= end for at in one.times) for one in together)
    single, eight = rate(alone), counted / (end - begin)
    return {"single_tokens_per_s": single, "eight_tokens_per_s": eight, "ratio": eight / single}


async def pause(options: argparse.Namespace) -> dict[str, Any]:
    """A running stream while a long prompt joins, and what the longest chunk of such a prompt takes alone."""
    joining = options.sizes.joining
    async with engine(options) as on:
        stream = Run()
        running = asyncio.create_task(run(on, job(ids(on, 1, 64), 64), stream))
        while len(stream.times) < 24 and not running.done():  # noqa: ASYNC110 - the stream is all there is to wait for
            await asyncio.sleep(0.01)
        joined = time.perf_counter()
        long = await run(on, job(ids(on, 2, joining), 2))
        await running
        chunks = await chunk_seconds(on, ids(on, 3, joining))
    steady = [later - earlier for earlier, later in itertools.pairwise(stream.times) if later < joined]
    if not steady:
        raise SystemExit("the stream ended before the prompt joined")
    middle, worst, chunk = statistics.median(steady), max(stream.gaps), max(chunks)
    draw(stream, joined, options)
    return {
        "steady_s": middle,
        "worst_s": worst,
        "chunk_s": chunk,
        "bound_s": 3 * middle + chunk,
        "chunks_s": chunks,
        "prefill_tokens_per_s": joining / finish(long).prefill_seconds,
    }


def draw(stream: Run, joined: float, options: argparse.Namespace) -> None:
    """A bar for each token of the stream: how long after the one before it came; red since the prompt joined."""
    target: pathlib.Path | None = options.picture
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
        f'<text x="60" y="286">tokens of a running stream; red: since a {options.sizes.joining}-token prompt '
        "joined</text></svg>\n"
    )


async def loaded(options: argparse.Namespace) -> dict[str, Any]:
    """Decoding alone and beside a busy loop on every core, in turn."""
    sizes, alone, beside = options.sizes, [], []
    async with engine(options) as on:
        for number in range(options.rounds):
            first, second = (ids(on, 2 * number + n, sizes.context) for n in (1, 2))
            alone.append(rate(await run(on, job(first, sizes.tokens))))
            with busy_cores():
                beside.append(rate(await run(on, job(second, sizes.tokens))))
    quiet, busy = statistics.median(alone), statistics.median(beside)
    return {
        "busy_loops": os.cpu_count(),
        "alone_tokens_per_s": quiet,
        "loaded_tokens_per_s": busy,
        "slower": quiet / busy,
        "rounds": list(zip(alone, beside, strict=True)),
    }


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process for every core that does nothing but keep it busy."""
    command = [sys.executable, "-c", BUSY]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)]
    try:
        for loop in loops:
            if loop.stdout is None or not loop.stdout.readline():
                raise SystemExit("a busy loop did not start")
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


async def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Long prompts all at once: answered in order, within the budget."""
    peak, ended, began = 0, [], time.perf_counter()
    async with engine(options) as on:
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def one(number: int) -> None:
            nonlocal peak
            async for _ in on.submit(job(ids(on, 100 + number, options.sizes.prompt), 2)):
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
