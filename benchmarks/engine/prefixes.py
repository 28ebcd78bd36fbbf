"""A long prompt before and after its process is killed: computed, then brought back from the disk."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import signal
import tempfile
from typing import Any

from rig import engine, finish, ids, job, run
from turns import first_half

from maple.engine.worker import ThreadedEngine

_TOKENS = 16
_QUIET = 10
"""So many looks, a fifth of a second apart, without another block written: all are."""


async def cold(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """The first half: the prompt is computed and its blocks are written; what came is printed; SIGKILL."""
    async with engine(options, prefixes=folder) as on:
        first = await run(on, job(ids(on, 1, options.sizes.agent), _TOKENS))
        blocks = await written(on)
        print(json.dumps({"text": first.text, "s": first.first, "blocks": blocks}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def prefix(options: argparse.Namespace) -> dict[str, Any]:
    """Time to the first token of an agent's prompt: cold, from the disk after a SIGKILL, and from memory."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        told = first_half(options, name, half="--cold")
        size = forget_pages(folder)
        async with engine(options, prefixes=folder) as on:
            prompt = ids(on, 1, options.sizes.agent)
            again = await run(on, job(prompt, _TOKENS))
            warm = await run(on, job(prompt, _TOKENS))
        return {
            "tokens": options.sizes.agent,
            "cold_s": told["s"],
            "disk_s": again.first,
            "memory_s": warm.first,
            "sooner": told["s"] / again.first,
            "cached": finish(again).cached_tokens,
            "same_text": again.text == warm.text == told["text"],
            "blocks": told["blocks"],
            "mib": size / 2**20,
        }


async def written(on: ThreadedEngine) -> int:
    """How many blocks were written, once nothing more is."""
    last, quiet = -1, 0
    while quiet < _QUIET:
        now = on.stats().prefix_disk_written_blocks
        quiet = quiet + 1 if now == last else 0
        last = now
        await asyncio.sleep(0.2)
    return last


def forget_pages(folder: pathlib.Path) -> int:
    """Have the system drop what it holds of the files in memory, as after a boot; their bytes."""
    os.sync()
    total = 0
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                total += path.stat().st_size
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return total
