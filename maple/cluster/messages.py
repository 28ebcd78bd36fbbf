"""What a front and a replica say to each other. Ray carries it with its own serialisation, within the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import attrs

from maple.engine.api import Finish, Piece, Served
from maple.engine.errors import EngineError
from maple.engine.stats import EngineStats
from maple.errors import MapleError


@attrs.frozen
class Admitted:
    """The job has its slot and its memory on the replica."""


Item = Admitted | Piece | Finish | EngineError
"""What becomes of a job; a Finish or an error is the last."""

Batch = Sequence[tuple[int, Item]]
"""What one step of a replica made for one front: job numbers, each with an item, in order."""


@attrs.frozen(kw_only=True)
class Greeting:
    """What a front has to know of a replica before it sends it anything. ``node`` names the machine."""

    served: Served
    slots: int
    node: str


@attrs.frozen(kw_only=True)
class Beat:
    """A replica's state: its counts, and the prefixes that it has come to hold since the front's last beat.

    ``held`` are hashes as ``routing.chain`` makes them; ``mark`` is where the next beat goes on.
    """

    stats: EngineStats
    held: tuple[int, ...]
    mark: int


class ReplicaGone(MapleError):
    """A replica does not answer any more."""


class FleetFailed(MapleError):
    """There is no cluster, or the deployment cannot be made. The message is one line for the operator."""


class Fleet(Protocol):
    """The replicas, as a front reaches them. Everything is used on the event loop's thread."""

    async def start(self, changed: Callable[[frozenset[str]], None]) -> None:
        """Find or make the deployment; ``changed`` is called on the loop with the names of those that can be reached.

        Raises FleetFailed.
        """
        ...

    def attach(self, replica: str, front: str) -> AsyncIterator[Batch]:
        """What a replica makes for this front, until it ends or is lost (ReplicaGone)."""
        ...

    async def call(self, replica: str, method: str, *arguments: Any) -> Any:
        """Call a method of ``ReplicaHost``. Raises what it raises if that is an EngineError, else ReplicaGone."""
        ...

    async def close(self) -> None:
        """Let go of the cluster; what is deployed stays for the other fronts, unless this one made the cluster."""
        ...
