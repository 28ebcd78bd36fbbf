"""Which replica gets a job: the one that holds most of its prompt, unless it is loaded beyond its share.

Pure data and arithmetic, on one thread: no cluster is needed to try it.
"""

from __future__ import annotations

import array
import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import attrs

PIECE = 64
"""Ids a hash: a block of the engine's own prefix tree."""

LOAD_BOUND = 1.5
"""No replica gets a job for its prefix's sake that would bring it above so many times the mean load."""

_MOST_HELD = 1 << 16  # pieces remembered of a replica: four million ids, more than its memory holds


def chain(owner: str, ids: Sequence[int]) -> tuple[int, ...]:
    """One hash (64 bits) for each whole piece of the ids, each of all before it too; owners never share one."""
    packed = array.array("I", ids).tobytes()
    width = PIECE * array.array("I").itemsize
    digest, hashes = hashlib.blake2b(owner.encode("utf-8"), digest_size=8).digest(), []
    for start in range(0, len(packed) - width + 1, width):
        digest = hashlib.blake2b(digest + packed[start : start + width], digest_size=8).digest()
        hashes.append(int.from_bytes(digest, "big"))
    return tuple(hashes)


class Held:
    """The pieces that a replica is believed to hold, those used last kept longest."""

    def __init__(self, most: int = _MOST_HELD) -> None:
        self._most = most
        self._pieces: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, hashes: Iterable[int]) -> None:
        """Note these as used now."""
        for one in hashes:
            self._pieces[one] = None
            self._pieces.move_to_end(one)
        while len(self._pieces) > self._most:
            self._pieces.popitem(last=False)

    def match(self, hashes: Sequence[int]) -> int:
        """How many pieces at the start of a prompt are held."""
        return next((count for count, one in enumerate(hashes) if one not in self._pieces), len(hashes))


@attrs.frozen(kw_only=True)
class Candidate:
    """A replica that can take a job: ``load`` jobs run or wait there, ``slots`` run at a time."""

    load: int
    slots: int
    held: Held


def choose(
    candidates: Mapping[str, Candidate], hashes: Sequence[int], stuck: str | None = None
) -> str | None:
    """The name of the replica that should run a prompt; None where every queue is full.

    ``stuck`` is the replica that has the job's session: it is taken while it has room. A replica's own queue holds as
    many jobs as it has slots.
    """
    room = {name: one for name, one in candidates.items() if one.load < 2 * one.slots}
    if stuck in room:
        return stuck
    if not room:
        return None
    bound = math.ceil(LOAD_BOUND * (sum(one.load for one in candidates.values()) + 1) / len(candidates))
    matches = {name: one.held.match(hashes) for name, one in room.items()}
    fit = [name for name in room if matches[name] and room[name].load < bound]
    if fit:
        return max(fit, key=lambda name: (matches[name], -room[name].load, name))
    return min(room, key=lambda name: (room[name].load / room[name].slots, len(room[name].held), name))
