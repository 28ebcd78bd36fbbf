"""A server of one's own: a child process on a free port, which ends with the conversation."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import IO

from maple.errors import CommandFailed

_PATIENCE = 30.0
"""Seconds that a child has to end in before it is killed."""


@contextlib.contextmanager
def own_server(
    flags: Sequence[str], loading: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext
) -> Iterator[str]:
    """Start ``maple serve`` with these flags, wait until its model is loaded, give its address, stop it.

    What ``loading`` makes of the address is held while the model loads. Raises CommandFailed with the child's last line
    where it does not get that far.
    """
    command = [sys.executable, "-P", "-m", "maple", "serve", *flags, "--host", "127.0.0.1", "--port", "0"]
    with contextlib.ExitStack() as ending:
        with _interrupts_held():  # one that came while the child is made would leave it to nobody
            process = ending.enter_context(
                subprocess.Popen(  # noqa: S603 -- this program itself
                    [*command, "--log-format", "json"],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    text=True,
                    encoding="utf-8",
                    errors="replace",
                    env=_environment(),
                    start_new_session=True,  # the terminal's Ctrl-C stops an answer, not the server
                )
            )
            ending.callback(_stop, process)
        if process.stderr is None:
            raise CommandFailed("the server has no log to read")
        url = _wait(process.stderr, loading)
        threading.Thread(target=_drain, args=(process.stderr,), daemon=True).start()
        yield url


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C does what it does, but afterwards. Other threads than the main one never hear of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _environment() -> dict[str, str]:
    """Ours without what would close the child to us or open it to others."""
    mine = {"MAPLE_API_KEY", "MAPLE_API_KEY_FILE", "MAPLE_HOST", "MAPLE_PORT", "MAPLE_LOG_FORMAT"}
    return {name: value for name, value in os.environ.items() if name not in mine} | {
        "MAPLE_LOG_LEVEL": "info"
    }


def _wait(log: IO[str], loading: Callable[[str], AbstractContextManager[object]]) -> str:
    url, last = "", "it said nothing"
    with contextlib.ExitStack() as load:
        for line in log:
            try:
                event = json.loads(line)
            except ValueError:
                last = line.strip() or last  # a refusal is a line of text
                continue
            if event["event"] == "server.listening":
                url = f"http://127.0.0.1:{event['port']}"
                load.enter_context(loading(url))
            elif event["event"] == "server.ready":
                return url
            elif event.get("level") == "error":
                reason = event.get("reason", event["event"])
                raise CommandFailed(f"the server could not load its model: {reason}")
    raise CommandFailed(f"the server did not start: {last.removeprefix('maple: ')}")


def _drain(log: IO[str]) -> None:
    """Read on, or the child would block once the pipe is full; the pipe may close under it at the end."""
    with contextlib.suppress(ValueError):
        for _ in log:
            pass


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
