"""What a person at a terminal is told when the server is there, or why it will not be."""

from __future__ import annotations

import sys
from collections.abc import Callable

from maple.errors import MapleError
from maple.turns import Turns


class StartFailed(MapleError):
    """The model could not be loaded, and somebody sits there who can do something about it."""


def attended() -> bool:
    """Whether a person reads what this process says."""
    return sys.stderr is not None and sys.stderr.isatty()


def announce(turns: Turns, url: str, *, ui: bool, stop: Callable[[], None]) -> None:
    """Once the model is there, say where to go; where it never will be, stop.

    Under a supervisor a server whose model fails stays up and says so in /health; a person would wait for it.
    """
    if turns.status == "error":
        stop()
    elif turns.status == "ok":
        chat = f"Chat: {url}/ui · " if ui else ""
        sys.stderr.write(f"\n{chat}API: {url}/v1 · Ctrl-C ends\n")
        sys.stderr.flush()
