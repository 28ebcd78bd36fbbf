"""What there is of a prompt, in the tree and in running sequences, and what is dropped when it is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from maple.engine.kv.block_table import BlockTable
from maple.engine.kv.kept_nodes import KeptNodes
from maple.engine.kv.prefix_tree import (
    BLOCK,
    Match,
    Partial,
    PrefixNode,
    SessionKey,
    best_match,
    common_length,
)


class Prefixes:
    """The trees of all domains, and the ``open`` tables that add to them; ``window`` in tokens."""

    def __init__(self, kept: KeptNodes, window: int) -> None:
        self.open: set[BlockTable] = set()
        self._kept = kept
        self._window = window
        self.roots: dict[str, PrefixNode] = {}
        """The tree of each domain of which anything is kept."""

    def root(self, domain: str) -> PrefixNode:
        """The domain's tree, which may be empty."""
        return self.roots.get(domain, PrefixNode())

    def add(self, table: BlockTable) -> None:
        """A table goes on in its root's tree."""
        self.roots[table.domain] = table.root
        self.open.add(table)

    def remove(self, table: BlockTable) -> None:
        """A table has ended; a tree with nothing in it is forgotten."""
        self.open.discard(table)
        root = table.root
        if not (root.children or root.tails) and not any(one.root is root for one in self.open):
            self.roots.pop(table.domain, None)

    def match(self, root: PrefixNode, ids: Sequence[int], limit: int) -> Match:
        """What there is of the first ``limit`` ids."""
        path = root.path(ids, limit)
        rest = ids[len(path) * BLOCK : min(limit, (len(path) + 1) * BLOCK)]
        return best_match(path, tuple(rest), self._partials(root, path, tuple(rest)), self._window)

    def _partials(
        self, root: PrefixNode, path: Sequence[PrefixNode], rest: tuple[int, ...]
    ) -> Iterator[Partial]:
        node, depth = path[-1] if path else root, len(path)
        for one in node.near(rest):
            yield Partial(one.ids, one.full, one.sliding)
        for table in self.open:
            if table.parent is node and len(table.nodes) == depth and table.length > depth * BLOCK:
                own = tuple(table.ids[depth * BLOCK :])
                yield Partial(own, table.blocks[depth], table.sliding_blocks[depth])

    def is_being_computed(self, root: PrefixNode, prompt: Sequence[int], there: int) -> bool:
        """Whether an open table is about to have a block's worth more of the prompt than is there, or all of it."""
        for table in self.open:
            if table.root is root and table.length < len(table.prompt):
                common = common_length(table.prompt, prompt, len(prompt) - 1)
                worth = 1 if table.prompt == prompt else BLOCK
                if table.length < common and common - there >= worth:
                    return True
        return False

    def session_ids(self, key: SessionKey) -> Sequence[int]:
        """The ids that a session has, as far as they are kept."""
        return self._kept.sessions.ids(key)

    def forget(self, domain: str, ids: Sequence[int]) -> None:
        """Drop what is kept of ``ids`` alone: what other sequences go on from stays."""
        root = self.roots.get(domain)
        if root is not None:
            path = root.path(ids, len(ids))
            tail = (path[-1] if path else root).tails.get(tuple(ids[len(path) * BLOCK :]))
            self._forget_path(tail or (path[-1] if path else root))

    def forget_session(self, key: SessionKey, running: Collection[BlockTable] = ()) -> bool:
        """Drop all that a session made, but for what others have; whether there was one.

        ``running`` are its own sequences, which go on.
        """
        session = self._kept.sessions.pop(key)
        if session is None:
            return False
        others = {node for table in self.open.difference(running) for node in table.nodes}
        end = session.end
        for node in session.made:
            if node.linked and not node.ends and node not in others:
                self._kept.drop(node)
        while end is not None and not end.linked:
            end = end.parent
        if end is not None:
            self._forget_path(end)
        return session.end is not None

    def _forget_path(self, node: PrefixNode) -> None:
        """Drop a node, and those before it that are of use to nobody else."""
        while node.parent is not None:
            before = node.parent
            if node.children or node.tails or node.ends or not self._kept.is_unused(node):
                break
            self._kept.drop(node)
            node = before
