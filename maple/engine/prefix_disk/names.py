"""What blocks and owners are called on disk: names that tell nothing without the folder's secret."""

from __future__ import annotations

import array
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs

from maple.engine.kv.prefix_tree import BLOCK


class Owners(Protocol):
    """Who may own prefixes: the keys that open this server. Asked on any thread."""

    @property
    def required(self) -> bool:
        """Whether there are keys at all; without any, everyone is one owner."""
        ...

    def identities(self) -> Mapping[str, bytes]:
        """A digest of each owner's key, by the owner's name."""
        ...

    def listen(self, changed: Callable[[], None]) -> None:
        """``changed`` is called whenever the keys have been read anew."""
        ...


@attrs.frozen(kw_only=True)
class Names:
    """Names under one ``secret``: an owner's is ``tag``, a block's is ``tag/hash`` of all ids up to its last.

    A key that was replaced gives its owner another tag. ``shared``: all are one owner.
    """

    secret: bytes = attrs.field(repr=False)
    owners: Owners | None = None
    shared: bool = False

    def tag(self, domain: str) -> str:
        """What is written of an owner."""
        if self.shared:
            return self._hash(b"all")
        identities = {} if self.owners is None else self.owners.identities()
        return self._hash(b"key" + identities[domain] if domain in identities else b"name" + domain.encode())

    def tags(self) -> set[str] | None:
        """Those of everybody who may enter; None where there are no keys."""
        if self.owners is None or not self.owners.required:
            return None
        return {self.tag(owner) for owner in self.owners.identities()}

    def after(self, before: str, ids: Sequence[int]) -> str:
        """The name of the block that holds ``ids`` behind the block, or the owner, of the name ``before``."""
        tag = before.partition("/")[0]
        return f"{tag}/{self._hash(before.encode() + array.array('i', ids).tobytes())}"

    def chain(self, tag: str, ids: Sequence[int]) -> list[str]:
        """The names of an owner's whole blocks of these ids."""
        names, before = [], tag
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            before = self.after(before, ids[start : start + BLOCK])
            names.append(before)
        return names

    def session(self, session_id: str) -> str:
        """What is written of a session's id."""
        return self._hash(b"session" + session_id.encode())

    def _hash(self, data: bytes) -> str:
        return hashlib.blake2b(data, key=self.secret, digest_size=16).hexdigest()
