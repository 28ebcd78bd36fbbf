"""What one request is read by, and what it is found to hold in vain.

A Shape is given its value alone. The level it goes by, and what it drops, pass by way of this context, which
holds for the structuring of one request, in one thread.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextvars import ContextVar

import attrs

from maple_protocols.rules import Misfit

_SAFE_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")


@attrs.define
class Reading:
    """``dropped`` are the paths of what has no effect, without indices, in the order in which they were met."""

    extended: bool = False
    dropped: dict[str, None] = attrs.Factory(dict)


_current: ContextVar[Reading] = ContextVar("reading")


@contextlib.contextmanager
def reading(*, extended: bool) -> Iterator[Reading]:
    """Read one request at this level."""
    token = _current.set(Reading(extended))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def is_extended() -> bool:
    """Whether the request that is being read is served as real clients need it."""
    return _current.get(Reading()).extended


def drop(*path: str) -> None:
    """Note that what stands at ``path`` has no effect; its last name may be the client's own."""
    _current.get(Reading()).dropped[".".join((*path[:-1], safe_name(path[-1])))] = None


def unserved(must: str, *path: str | int) -> Misfit:
    """A refusal of what only the extended level serves."""
    return Misfit(f"{must}; this is served with --api-level extended", *path)


def safe_name(name: str) -> str:
    """A client's name for something as it may stand in a header."""
    return name if _SAFE_NAME.fullmatch(name) else "?"
