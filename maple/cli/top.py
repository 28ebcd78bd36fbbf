"""``maple top``: what a running server works on, live on a terminal, line by line elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from maple.client import Remote
from maple.command import Command, CommandParser

View = Mapping[str, Any]
"""An answer of GET /v1/slots."""

_COLUMNS = "{:<24} {:<8} {:>7} {:>15} {:>8} {:>6} {:>7}"
_ENTER, _LEAVE = (
    "\x1b[?1049h\x1b[?25l",
    "\x1b[?25h\x1b[?1049l",
)  # the other screen and no cursor; both as they were
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise ValueError(text)
    return value


def _declare(parser: CommandParser) -> None:
    parser.add_argument("--url", metavar="URL", default="http://127.0.0.1:8000", help="the server to look at")
    parser.add_argument("--interval", metavar="SECONDS", type=_seconds, default=1.0, help="how often")
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument("--json", action="store_true", help="a line of JSON each time")


def _top(given: argparse.Namespace) -> int:
    """Look until interrupted. Raises CommandFailed where there is no answer."""
    remote = Remote(given.url, os.environ.get("MAPLE_API_KEY"))
    live = sys.stdout.isatty() and not given.once and not given.json
    try:
        with _screen() if live else contextlib.nullcontext():
            while True:
                view = remote.read("/v1/slots")
                _show(json.dumps(view) if given.json else table(view), live=live)
                if given.once:
                    return 0
                time.sleep(given.interval)
    except KeyboardInterrupt:  # the way out
        return 0
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """Draw beside what the terminal shows, which is there again afterwards."""
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _show(text: str, *, live: bool) -> None:
    if live:
        size = shutil.get_terminal_size()
        lines = [f"{line[: size.columns]}{_REST_OF_LINE}" for line in text.splitlines()[: size.lines - 1]]
        text = _HOME + "\r\n".join(lines) + _REST_OF_SCREEN
    sys.stdout.write(text if live else f"{text}\n")
    sys.stdout.flush()


def table(view: View) -> str:
    """What runs and waits, a line a request; no character in it can drive a terminal."""
    data, others = view["data"], view["others"]
    running = others["running"] + sum(one["state"] != "queued" for one in data)
    waiting = others["waiting"] + sum(one["state"] == "queued" for one in data)
    told = f"{running} of {view['total_slots']} slots in use, {waiting} waiting"
    if any(others.values()):
        told += f" (of other keys: {others['running']} running, {others['waiting']} waiting)"
    heading = _COLUMNS.format("request", "state", "age", "prompt", "cached", "new", "tok/s")
    return "\n".join([told, heading, *map(_row, data)])


def _row(one: Mapping[str, Any]) -> str:
    prompt = one["prompt"]
    return _COLUMNS.format(
        "".join(letter if letter.isprintable() else "?" for letter in one["id"])[:24],
        one["state"],
        f"{one['age_s']:.0f} s",
        f"{prompt['processed']}/{prompt['total']}",
        prompt["cached"],
        one["generated"],
        f"{one['tokens_per_second']:.1f}",
    )


TOP = Command(
    name="top",
    help="show what a running server works on",
    run=_top,
    declare=_declare,
    epilog="MAPLE_API_KEY is sent where it is set; Ctrl-C leaves.",
)
