"""A thread that looks whether the event loop and the engine's thread come forward, and says in what they are stuck."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import sys
import threading
import time
import traceback
from collections.abc import Callable

import structlog

from maple.engine.step_clock import StepClock
from maple.observe.systemd import Notifier

log = structlog.get_logger(__name__)

BEAT_SECONDS = 1.0
STUCK_SECONDS = 5.0
"""From here on it is logged, once for each time."""
DEAD_SECONDS = 120.0
"""From here on systemd is told nothing more, and kills. A step of a long prompt on a slow machine takes seconds."""
LAST_WORDS_SECONDS = 0.5

_OWN = str(pathlib.Path(__file__).parents[1])


class Watchdog:
    """``observe`` is told on the loop how late each beat was, in seconds. One per server."""

    def __init__(self, steps: StepClock, notifier: Notifier, observe: Callable[[float], None]) -> None:
        self._steps = steps
        self._notifier = notifier
        self._observe = observe
        self._loop_thread = 0
        self.answered = 0.0
        """When the loop last did, on the monotonic clock."""
        self._told: dict[str, float] = {}
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to watch the running loop, whose thread this is."""
        self._loop_thread, self.answered = threading.get_ident(), time.monotonic()
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, args=(loop,), name="maple-watchdog", daemon=True).start()

    def close(self) -> None:
        """Watch no more."""
        self._ended.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = False
        sent = 0.0

        def answer() -> None:
            nonlocal waiting
            waiting = False
            self.answered = time.monotonic()
            self._observe(self.answered - sent)

        while not self._ended.wait(BEAT_SECONDS):
            if not waiting:
                waiting, sent = True, time.monotonic()
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(answer)
            self._look()

    def _look(self) -> None:
        """Log who is stuck, and tell systemd unless somebody has been for too long."""
        now = time.monotonic()
        running = self._steps.running
        suspects = {"loop": (self._loop_thread, self.answered)}
        if running is not None:
            suspects["engine"] = running
        for name, (thread, since) in suspects.items():
            if now - since >= STUCK_SECONDS and self._told.get(name) != since:
                self._told[name] = since
                log.error("watchdog.stuck", what=name, seconds=round(now - since, 1), stack=own_stack(thread))
        if all(now - since < DEAD_SECONDS for _, since in suspects.values()):
            self._notifier.alive()


def own_stack(thread: int) -> list[str]:
    """Where a thread is, innermost last: our own frames, as ``http/base.py:90 respond``; never values."""
    frame = sys._current_frames().get(thread)
    frames = traceback.extract_stack(frame) if frame is not None else []
    return [
        f"{each.filename.removeprefix(_OWN).lstrip('/')}:{each.lineno} {each.name}"
        for each in frames
        if each.filename.startswith(_OWN)
    ]


def end_anyway(seconds: float) -> None:
    """End the process with code 1 if it is still there then, whatever its threads hang in."""

    def end() -> None:
        stacks = filter(None, map(own_stack, sys._current_frames()))
        log.error("server.ended_anyway", seconds=seconds, stacks=list(stacks))
        time.sleep(LAST_WORDS_SECONDS)  # the log has a thread of its own, and may hang as well
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
