"""What a person at a terminal is told: what is served, where to go once it is there, or why it will not be."""

from __future__ import annotations

import sys
import threading
import webbrowser
from collections.abc import Callable

from maple import __version__
from maple.configure import Configuration
from maple.errors import MapleError
from maple.turns import Turns

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
"""Addresses to listen on that are none to go to."""
LAST_LINES = ("engine.load_failed", "server.tokenizer_unusable")
"""Events that end the process on a terminal: their reason is its last line."""


class StartFailed(MapleError):
    """The model could not be loaded, and somebody sits there who can do something about it."""


def attended() -> bool:
    """Whether a person reads what this process says."""
    return sys.stderr is not None and sys.stderr.isatty()


def log_level(configuration: Configuration) -> str:
    """The level of the log: on a terminal warnings are enough, unless somebody asked for more."""
    quiet = attended() and configuration.sources["log_level"] == "default"
    return "warning" if quiet else configuration.settings.log_level


def reachable(host: str, port: int) -> str:
    """The address of a server that listens on ``host``, for whoever sits before it."""
    named = _LOOPBACK.get(host) or (f"[{host}]" if ":" in host else host)
    return f"http://{named}:{port}"


def greet(source: str, model_id: str, *, demo: bool) -> None:
    """Say what is about to be loaded."""
    what = "the small demonstration model" if demo else source
    _say(f"Maple Server {__version__} · loading {what}, served as {model_id}")


def announce(turns: Turns, url: str, *, ui: bool, open_page: bool, stop: Callable[[], None]) -> None:
    """Once the model is there, say where to go, or go there; where it never will be, stop.

    Under a supervisor a server whose model fails stays up and says so in /health; a person would wait for it.
    """
    if turns.status == "error":
        stop()
    elif turns.status == "ok":
        chat = f"Chat: {url}/ui · " if ui else ""
        _say(f"{chat}API: {url}/v1 · Ctrl-C ends")
        if open_page and ui:
            threading.Thread(target=_open, args=(f"{url}/ui",), daemon=True).start()


def _open(page: str) -> None:
    """On a thread of its own: a browser that runs in the terminal is waited for, and asks this server."""
    if not webbrowser.open(page):
        _say("no browser could be opened here")


def part(running: int) -> None:
    """Say what an end waits for."""
    _say(f"waiting for {running} running answer{'s' * (running != 1)} · Ctrl-C again ends at once")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
