"""Which protocols there are: every entry point of the group ``maple.protocols``, built in or not.

An entry point names an adapter class without arguments; a distribution that declares one adds its routes.
"""

from __future__ import annotations

from importlib import metadata
from typing import cast

import attrs

from maple_protocols.adapter import Adapter

GROUP = "maple.protocols"


class ProtocolError(Exception):
    """A protocol cannot be served. ``str()`` is one line."""


@attrs.define(eq=False)
class DuplicateProtocol(ProtocolError):
    """Two distributions declare a protocol of the same name."""

    name: str
    distributions: tuple[str, ...]

    def __str__(self) -> str:
        return f"the protocol {self.name!r} is declared by {' and by '.join(self.distributions)}"


@attrs.define(eq=False)
class BrokenProtocol(ProtocolError):
    """A protocol's class could not be imported or made; the cause is chained."""

    name: str
    distribution: str
    reference: str

    def __str__(self) -> str:
        return f"the protocol {self.name!r} of {self.distribution} cannot be loaded from {self.reference}"


@attrs.define(eq=False)
class UnknownProtocol(ProtocolError):
    """No distribution declares a protocol of that name."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"there is no protocol {self.name!r}; known are {', '.join(self.known)}"


def adapters() -> tuple[Adapter, ...]:
    """One adapter of every declared protocol, by name. Raises DuplicateProtocol or BrokenProtocol."""
    return tuple(_load(entry) for _, entry in sorted(_declared().items()))


def find(name: str) -> Adapter:
    """The adapter of that name; nothing else is imported. Raises a ProtocolError."""
    declared = _declared()
    if name not in declared:
        raise UnknownProtocol(name, tuple(sorted(declared)))
    return _load(declared[name])


def _declared() -> dict[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in found:
            raise DuplicateProtocol(entry.name, tuple(sorted({_owner(found[entry.name]), _owner(entry)})))
        found[entry.name] = entry
    return found


def _owner(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unnamed distribution"


def _load(entry: metadata.EntryPoint) -> Adapter:
    try:
        return cast("Adapter", entry.load()())
    except Exception as error:
        raise BrokenProtocol(entry.name, _owner(entry), entry.value) from error
