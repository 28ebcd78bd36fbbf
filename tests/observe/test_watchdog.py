"""Whoever is stuck is named with where, and a server that hangs still ends."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import pytest
from maple_testing.guard import HANG_GUARD, until

from maple.engine.step_clock import StepClock
from maple.observe import logs
from maple.observe.systemd import Notifier
from maple.observe.watchdog import Watchdog, own_stack


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Milliseconds where the server takes seconds."""
    monkeypatch.setattr("maple.observe.watchdog.BEAT_SECONDS", 0.01)
    monkeypatch.setattr("maple.observe.watchdog.STUCK_SECONDS", 0.05)


@pytest.fixture
def log() -> io.StringIO:
    kept = io.StringIO()
    logs.configure(level="debug", format="json", stream=kept)
    return kept


def stuck(log: io.StringIO, what: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in lines if line["event"] == "watchdog.stuck" and line["what"] == what]


@pytest.mark.usefixtures("impatient")
def test_a_loop_that_is_stuck_is_logged_once(log: io.StringIO) -> None:
    """By the watchdog's own thread, while the loop is still stuck; afterwards the lag is observed."""
    lags: list[float] = []

    async def main() -> None:
        watchdog = Watchdog(StepClock(), Notifier(), lags.append)
        watchdog.start()
        until(lambda: stuck(log, "loop"))
        # A beat was sent before that line, so this is the least that it waits.
        time.sleep(0.05)  # noqa: ASYNC251 -- a loop that is held up is what is watched
        await asyncio.to_thread(until, lambda: max(lags, default=0) >= 0.05)
        watchdog.close()

    asyncio.run(main())
    assert len(stuck(log, "loop")) >= 1
    assert stuck(log, "engine") == []


@pytest.mark.usefixtures("impatient")
def test_a_step_that_is_stuck_is_logged_and_counted(log: io.StringIO) -> None:
    """The loop goes on meanwhile; the step's time lands in the histogram once it is over."""
    steps, over = StepClock(), threading.Event()

    def step() -> None:
        with steps.step():
            over.wait(HANG_GUARD)

    async def main() -> None:
        watchdog = Watchdog(steps, Notifier(), lambda _: None)
        watchdog.start()
        engine = threading.Thread(target=step)
        engine.start()
        await asyncio.to_thread(until, lambda: stuck(log, "engine"))
        over.set()
        engine.join()
        watchdog.close()

    asyncio.run(main())
    assert (sum(steps.counts), steps.running) == (1, None)
    assert steps.seconds >= 0.05


def test_a_stack_is_our_own_frames_and_no_values() -> None:
    """File, line and function of the package; neither the library's frames nor anybody's data."""

    class Pipe(io.StringIO):
        def isatty(self) -> bool:
            there.set()
            return not over.wait(HANG_GUARD)

    there, over = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=lambda: logs.configure(level="info", format="auto", stream=Pipe("secret"))
    )
    thread.start()
    assert there.wait(HANG_GUARD)
    assert thread.ident is not None
    (frame,) = own_stack(thread.ident)
    over.set()
    thread.join()
    assert frame.startswith("observe/logs.py:")
    assert frame.endswith(" configure")
    assert own_stack(thread.ident) == []


@pytest.mark.usefixtures("impatient")
def test_systemd_is_told_as_long_as_nobody_is_stuck_for_too_long(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the socket that it names."""
    monkeypatch.setattr("maple.observe.watchdog.DEAD_SECONDS", 0.2)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(HANG_GUARD)

    async def main() -> None:
        watchdog = Watchdog(
            StepClock(), Notifier.of({"NOTIFY_SOCKET": str(tmp_path / "notify")}), lambda _: None
        )
        watchdog.start()
        assert await asyncio.to_thread(manager.recv, 100) == b"WATCHDOG=1"
        manager.setblocking(False)

        def silent() -> bool:
            """Whether nothing comes any more, the loop being stuck in this very wait."""
            try:
                return manager.recv(100) == b""
            except BlockingIOError:
                return watchdog.answered + 0.3 < time.monotonic()

        until(silent)
        watchdog.close()

    asyncio.run(main())
    manager.close()


def test_without_systemd_nobody_is_told() -> None:
    """And a socket that is gone is no error."""
    Notifier.of({}).ready()
    Notifier.of({"NOTIFY_SOCKET": "/nowhere/at/all"}).ready()
    Notifier.of({"NOTIFY_SOCKET": "@maple-nobody-listens"}).stopping()


def test_a_process_that_hangs_ends_anyway() -> None:
    """In a thread that nobody can stop, and with a log that nobody reads: with code 1, when its time is up."""
    program = (
        "import threading\n"
        "from maple.observe.watchdog import end_anyway\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "end_anyway(0.1)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=HANG_GUARD, check=False).returncode == 1
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    ended = subprocess.run([sys.executable, "-c", program], stderr=write, timeout=HANG_GUARD, check=False)
    assert ended.returncode == 1
    os.close(read)
    os.close(write)
