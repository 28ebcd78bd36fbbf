"""Sessions on a fleet: where each is live, and who is asked about it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from maple.cluster.link import Link
from maple.cluster.messages import Fleet, ReplicaGone
from maple.engine.errors import ModelLoading, SessionElsewhere, SessionUnknown

_MOST = 1 << 16  # sessions whose replica is remembered


class FleetSessions:
    """A session is asked of the replica that ran its last job, else of each in turn until one knows it.

    On shared storage any replica can load what another saved; on local disks only the one that saved it.
    """

    def __init__(self, fleet: Fleet, links: Callable[[], list[Link]]) -> None:
        self._fleet = fleet
        self._links = links
        self._places: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._saved: OrderedDict[tuple[str, str], str] = OrderedDict()

    def where(self, owner: str, session_id: str | None) -> str | None:
        """The replica that has a session, if it has one."""
        return None if session_id is None else self._places.get((owner, session_id))

    def stick(self, owner: str, session_id: str | None, replica: str) -> None:
        """A session's job goes there, and so does the next."""
        if session_id is not None:
            _note(self._places, (owner, session_id), replica)

    def forget(self, replica: str) -> None:
        """A replica is gone, and what was live there with it."""
        for key in [key for key, name in self._places.items() if name == replica]:
            del self._places[key]

    async def call(self, method: str, owner: str, session_id: str) -> Any:
        """What the replica that knows the session answers.

        Raises SessionUnknown where none does, or SessionElsewhere where one that is gone has saved it.
        """
        for name in self._in_turn(owner, session_id):
            try:
                answer = await self._fleet.call(name, "session", method, owner, session_id)
            except (SessionUnknown, ReplicaGone):
                continue
            self.stick(owner, session_id, name)
            if method == "save":
                _note(self._saved, (owner, session_id), name)
            return answer
        raise SessionElsewhere if self._lost(owner, session_id) else SessionUnknown

    async def delete(self, owner: str, session_id: str) -> None:
        """Every replica forgets it; raises SessionUnknown where none had it."""
        known = False
        for name in self._in_turn(owner, session_id):
            try:
                await self._fleet.call(name, "session", "delete", owner, session_id)
                known = True
            except (SessionUnknown, ReplicaGone):
                continue
        self._places.pop((owner, session_id), None)
        self._saved.pop((owner, session_id), None)
        if not known:
            raise SessionUnknown

    def _lost(self, owner: str, session_id: str) -> bool:
        """Whether this front had it saved by a replica that is gone."""
        place = self._saved.get((owner, session_id))
        return place is not None and all(link.name != place for link in self._links())

    def _in_turn(self, owner: str, session_id: str) -> list[str]:
        """The replicas, the likeliest first. Raises ModelLoading where there is none."""
        place = self._places.get((owner, session_id))
        names = [link.name for link in self._links()]
        if not names:
            raise ModelLoading
        return sorted(names, key=lambda name: (name != place, name))


def _note(places: OrderedDict[tuple[str, str], str], key: tuple[str, str], replica: str) -> None:
    places[key] = replica
    places.move_to_end(key)
    if len(places) > _MOST:
        places.popitem(last=False)
