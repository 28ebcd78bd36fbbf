"""Who in this process wants to know which replicas an application has: routers tell it on threads of Ray's."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

_watchers: defaultdict[str, list[Callable[[frozenset[str]], None]]] = defaultdict(list)
_names: dict[str, frozenset[str]] = {}
_lock = threading.Lock()


def watch(application: str, changed: Callable[[frozenset[str]], None]) -> None:
    """Have this process's routers of an application tell the names of its replicas, on whatever thread they run.

    What is known already is told at once: Serve makes one router a process.
    """
    with _lock:
        _watchers[application].append(changed)
        known = _names.get(application)
    if known is not None:
        changed(known)


def unwatch(application: str, changed: Callable[[frozenset[str]], None]) -> None:
    """Tell it no more."""
    with _lock:
        _watchers[application].remove(changed)


def tell(application: str, names: frozenset[str]) -> None:
    """The application's replicas are these now."""
    with _lock:
        _names[application] = names
        told = list(_watchers[application])
    for changed in told:
        changed(names)
