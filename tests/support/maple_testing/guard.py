"""The one bound on waiting: no test says how fast a machine must be, only that nothing hangs for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

HANG_GUARD = 900.0
"""Seconds after which something that should have happened long ago has failed: far more than ten times what the
slowest machine takes for the longest test."""

LINEAR_GUARD = 60.0
"""Seconds of processor time that linear work stays far below on any machine; where a test's input would take a
quadratic step minutes or hours."""


def until(condition: Callable[[], object], message: str = "it never came about", pause: float = 0.01) -> None:
    """Ask again every ``pause`` seconds until the condition is true."""
    deadline = time.monotonic() + HANG_GUARD
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(pause)


async def comes_about(condition: Callable[[], object], pause: float = 0.01) -> None:
    """``until`` on an event loop that goes on meanwhile."""
    async with asyncio.timeout(HANG_GUARD):
        while not condition():  # noqa: ASYNC110 -- a count tells nobody when it changes
            await asyncio.sleep(pause)


def run_guarded(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function on a loop of its own, for so long at most."""

    async def guarded() -> None:
        async with asyncio.timeout(HANG_GUARD):
            await test()

    asyncio.run(guarded())
