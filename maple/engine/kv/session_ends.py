"""Which sessions have something kept: where each one's last sequence ended in the tree, and what it made there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maple.engine.kv.prefix_tree import KeptSession, PrefixNode, SessionKey

MOST = 4096
"""Sessions remembered: many may end at one node, so memory for keys and values alone does not bound them."""


class SessionEnds:
    """Follows the tree as sequences end and nodes are dropped, so that nothing has to be walked to count.

    A session whose end is dropped ends one node earlier, until it comes to what other sessions have too.
    """

    def __init__(self) -> None:
        self.live = 0
        self._sessions: dict[SessionKey, KeptSession] = {}

    def note(self, key: SessionKey, end: PrefixNode, made: Iterable[PrefixNode]) -> None:
        """A sequence of the session has ended, here."""
        session = self._sessions.pop(key, None) or KeptSession(key)
        self._sessions[key] = session  # the newest comes last
        for node in made:
            if node.linked:
                node.maker = session
                session.made.add(node)
        self._move(session, end)
        if self.live > MOST:
            oldest = next(one for one in self._sessions.values() if one.end is not None)
            self._move(oldest, None)

    def ids(self, key: SessionKey) -> Sequence[int]:
        """The session's ids as far as they are kept."""
        session = self._sessions.get(key)
        if session is None or session.end is None:
            return ()
        return [token for node in reversed([*session.end.ancestors()]) for token in node.ids]

    def dropped(self, nodes: Sequence[PrefixNode]) -> None:
        """A node and all below it have left the tree: the first of them, then the others."""
        ended = [session for node in nodes for session in node.ending]
        for node in nodes:
            if node.maker is not None:
                node.maker.made.discard(node)
                self._forget_if_empty(node.maker)
        earlier = nodes[0].parent
        for session in ended:
            self._move(session, None)
        if len(ended) == 1 and earlier is not None and earlier.parent is not None and not earlier.ends:
            self._move(ended[0], earlier)

    def pop(self, key: SessionKey) -> KeptSession | None:
        """Forget a session; it still tells what it made, and its nodes no longer tell of it."""
        session = self._sessions.get(key)
        if session is not None:
            found = KeptSession(key, session.end, set(session.made))
            session.made.clear()
            self._move(session, None)
            self._forget_if_empty(session)
            return found
        return None

    def _move(self, session: KeptSession, end: PrefixNode | None) -> None:
        for node, change in ((session.end, -1), (end, 1)):
            for one in node.ancestors() if node is not None else ():
                one.ends += change
        if session.end is not None:
            session.end.ending.discard(session)
            self.live -= 1
        session.end = end
        if end is not None:
            end.ending.add(session)
            self._sessions[session.key] = session
            self.live += 1
        else:
            self._forget_if_empty(session)

    def _forget_if_empty(self, session: KeptSession) -> None:
        if session.end is None and not session.made and self._sessions.get(session.key) is session:
            del self._sessions[session.key]
