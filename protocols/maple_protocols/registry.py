"""Which protocols there are: every entry point of the group ``maple.protocols``, built in or not.

An entry point names an adapter class without arguments; a distribution that declares one adds its routes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import metadata

import attrs

from maple_protocols.kinds import Served, Unfit, served

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
class UnfitProtocol(ProtocolError):
    """A protocol's adapter lacks something, or its path is another's. ``words`` say what."""

    name: str
    distribution: str
    reference: str
    words: str

    def __str__(self) -> str:
        return f"the protocol {self.name!r} of {self.distribution} ({self.reference}) {self.words}"


def protocols(taken: Iterable[str] = ()) -> tuple[Served, ...]:
    """One checked adapter of every declared protocol, by name. Raises ProtocolError.

    ``taken`` are the Tornado patterns of the server's own routes.
    """
    owners = dict.fromkeys(taken, "the server itself")
    return tuple(_load(entry, owners) for _, entry in sorted(_declared().items()))


def _declared() -> dict[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in found:
            raise DuplicateProtocol(entry.name, tuple(sorted({_owner(found[entry.name]), _owner(entry)})))
        found[entry.name] = entry
    return found


def _owner(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unnamed distribution"


def _load(entry: metadata.EntryPoint, owners: dict[str, str]) -> Served:
    """The adapter of an entry point. Its patterns join ``owners``."""
    try:
        adapter = entry.load()()
    except Exception as error:
        raise BrokenProtocol(entry.name, _owner(entry), entry.value) from error
    try:
        found = served(adapter)
        for pattern in found.patterns:
            _check_free(pattern, owners)
    except Unfit as unfit:
        raise UnfitProtocol(entry.name, _owner(entry), entry.value, unfit.words) from None
    owners |= dict.fromkeys(found.patterns, f"the protocol {entry.name!r} of {_owner(entry)}")
    return found


def _check_free(pattern: str, owners: Mapping[str, str]) -> None:
    for other, owner in owners.items():
        if pattern == other or re.fullmatch(other, pattern):
            raise Unfit(f"has the path {pattern}, which {owner} serves already")
