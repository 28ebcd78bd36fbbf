"""Conversations that go on: second turns that reuse the first, and a restart between save and load."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from typing import Any

from rig import engine, finish, ids, job, run


async def reuse(options: argparse.Namespace) -> dict[str, Any]:
    """Time to the first token of a second turn, in four forms, against a cold one of the same length."""
    sizes, found = options.sizes, {}
    async with engine(options) as on:
        history = ids(on, 1, sizes.history)
        kept, answer = history[: sizes.history - sizes.reasoning - 100], history[sizes.history - 100 :]
        cold = await run(on, job(history, 2))
        forms = {
            "reasoning_sent_back": [*history, *ids(on, 2, sizes.new)],
            "reasoning_dropped": [*kept, *answer, *ids(on, 3, sizes.new)],
            "system_prompt_shared": [*history, *ids(on, 4, sizes.new)],
            "last_message_edited": [*history[: sizes.history - 5], *ids(on, 5, sizes.new)],
        }
        for name, prompt in forms.items():
            warm = await run(on, job(prompt, 2))
            found[name] = {
                "s": warm.first,
                "ratio": cold.first / warm.first,
                "cached": finish(warm).cached_tokens,
            }
    return {"cold_s": cold.first, **found}


async def before(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """The first half of ``restart``: a conversation is saved; what it would go on with is printed; SIGKILL."""
    sizes = options.sizes
    async with engine(options, sessions=folder) as on:
        await run(on, job(ids(on, 1, sizes.history), 8, "bench"))
        manifest = await on.save_session("", "bench")
        longer = [*ids(on, 1, sizes.history), *ids(on, 2, sizes.new)]
        warm = await run(on, job(longer, 8, "bench"))
        told = {"text": warm.text, "s": warm.first, "saved_tokens": manifest.tokens, "bytes": manifest.bytes}
        print(json.dumps(told), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def restart(options: argparse.Namespace) -> dict[str, Any]:
    """Save, kill, load, go on: the same text, and how long its first token took."""
    sizes = options.sizes
    with tempfile.TemporaryDirectory() as name:
        told = first_half(options, name)
        async with engine(options, sessions=pathlib.Path(name)) as on:
            loaded = await on.load_session("", "bench")
            longer = [*ids(on, 1, sizes.history), *ids(on, 2, sizes.new)]
            again = await run(on, job(longer, 8, "bench"))
        return {
            "saved": told,
            "load_ms": loaded.load_ms,
            "after_s": again.first,
            "ratio_to_warm": again.first / told["s"],
            "cached": finish(again).cached_tokens,
            "same_text": again.text == told["text"],
        }


def first_half(options: argparse.Namespace, folder: str, *, half: str = "--before") -> dict[str, Any]:
    """What ``before`` (or another ``half``) printed in a process of its own, which it killed."""
    script = pathlib.Path(__file__).with_name("full_size.py")
    command = [sys.executable, str(script), options.model, half, folder]
    command += ["--threads", str(options.threads), "--kv-mb", str(options.kv_mb)]
    command += ["--quick"] if options.quick else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != -signal.SIGKILL:
        raise SystemExit(f"the first half ended by itself: {done.returncode}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
