"""Which protocols there are: every entry point of the group ``maple.protocols``, built in or not.

An entry point names an adapter class without arguments; a distribution that declares one adds its routes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
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
class UnknownProtocol(ProtocolError):
    """A protocol that was asked for is not declared by any distribution."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"there is no protocol {self.name!r}; there are {', '.join(self.known)}"


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


def protocols(taken: Iterable[str] = (), chosen: Collection[str] = ()) -> tuple[Served, ...]:
    """The checked adapters of the chosen protocols, by name; of every declared one by default. Raises ProtocolError.

    ``taken`` are the Tornado patterns of the server's own routes.
    """
    declared = dict(sorted(_declared().items()))
    for name in chosen:
        if name not in declared:
            raise UnknownProtocol(name, tuple(declared))
    owners = dict.fromkeys(taken, "the server itself")
    wanted = [entry for name, entry in declared.items() if name in chosen or not chosen]
    return tuple(found for entry in wanted for found in _load(entry, owners))


def _declared() -> dict[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in found:
            raise DuplicateProtocol(entry.name, tuple(sorted({_owner(found[entry.name]), _owner(entry)})))
        found[entry.name] = entry
    return found


def _owner(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unnamed distribution"


def _load(entry: metadata.EntryPoint, owners: dict[str, str]) -> list[Served]:
    """The adapters of an entry point. Their patterns join ``owners``."""
    try:
        adapter = entry.load()()
    except Exception as error:
        raise BrokenProtocol(entry.name, _owner(entry), entry.value) from error
    try:
        return [_owned(part, entry, owners) for part in _parts(adapter)]
    except Unfit as unfit:
        raise UnfitProtocol(entry.name, _owner(entry), entry.value, unfit.words) from None


def _parts(adapter: object) -> tuple[object, ...]:
    parts = getattr(adapter, "parts", (adapter,))
    if not isinstance(parts, tuple) or not parts:
        raise Unfit("has parts that are not a tuple of adapters")
    return parts


def _owned(part: object, entry: metadata.EntryPoint, owners: dict[str, str]) -> Served:
    found = served(part)
    behind = f" with the header {found.header}" if found.header else ""
    patterns = [f"{pattern}{behind}" for pattern in found.patterns]
    for pattern in patterns:
        _check_free(pattern, owners)
    owners |= dict.fromkeys(patterns, f"the protocol {entry.name!r} of {_owner(entry)}")
    return attrs.evolve(found, name=entry.name, distribution=_owner(entry))


def _check_free(pattern: str, owners: Mapping[str, str]) -> None:
    for other, owner in owners.items():
        if pattern == other or re.fullmatch(other, pattern):
            raise Unfit(f"has the path {pattern}, which {owner} serves already")
