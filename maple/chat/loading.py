"""What a server loads, shown while somebody waits for it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from maple.client import Remote
from maple.errors import CommandFailed

_LOOK_EVERY = 0.25
_WORDS = {"download": "fetching", "packing": "packing", "load": "loading"}


def await_model(remote: Remote) -> Any:
    """Its /health once the model is there. Raises CommandFailed where it cannot be loaded."""
    with bars(remote):
        while (health := _health(remote))["status"] == "loading":
            time.sleep(_LOOK_EVERY)
    if health["status"] != "ok":
        raise CommandFailed(f"the server could not load its model: {health.get('error')}")
    return health


@contextlib.contextmanager
def bars(remote: Remote) -> Iterator[None]:
    """A bar for each phase of a load, on a terminal, until the block ends."""
    if not sys.stderr.isatty():
        yield
        return
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    over = threading.Event()
    looking = threading.Thread(target=_follow, args=(remote, progress, over), daemon=True)
    with progress:
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()


def _follow(remote: Remote, progress: Progress, over: threading.Event) -> None:
    tasks = {phase: progress.add_task(word, total=None, visible=False) for phase, word in _WORDS.items()}
    while not over.wait(_LOOK_EVERY):
        try:
            load = _health(remote).get("loading")
        except CommandFailed:
            return  # whoever waits for the server hears of it
        if load and load["total"]:
            task = tasks[load["phase"]]
            progress.update(task, completed=load["done"], total=load["total"], visible=True)


def _health(remote: Remote) -> Any:
    """503 is an answer too: that of a server whose model could not be loaded."""
    return remote.read("/health", allowed=(200, 503))
