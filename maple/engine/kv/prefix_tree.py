"""Which blocks hold which ids: a tree of owners' prefixes, 64 ids a node, that finds what a prompt shares.

Nodes are whole blocks. What a sequence had beyond its last whole block is kept as a tail, and copied from.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence

import attrs

BLOCK = 64
_NEAR = 16
"""Neighbours on each side that may lend a block its beginning: the nearest may have given up their sliding block."""

SessionKey = tuple[str, str]
"""Owner and session id."""


def common_length(first: Sequence[int], second: Sequence[int], limit: int) -> int:
    """How many ids at the start of both are the same, at most ``limit``."""
    length = min(len(first), len(second), limit)
    if first[:length] == second[:length]:
        return length
    low, high = 0, length - 1  # the first ``low`` are equal; beyond ``high`` they are not
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@attrs.define(eq=False)
class PrefixNode:
    """A block of ids behind its parent's. ``sliding`` is -1 once the sliding layers' block was given up.

    The generations are those of the blocks when they were noted. ``used`` is a clock's reading of when a sequence
    last ended that held it, ``again`` whether a further sequence went on from it; a node is no longer ``linked`` once
    it was taken out of the tree, and has no children then. ``maker`` is the session whose sequence made it; ``ending``
    are those that end here, ``ends`` counts them here and below. ``name`` is what the block is called outside of
    memory, if it is. A root has no ids and no blocks; a tail has fewer ids
    than a block, and no children.
    """

    parent: PrefixNode | None = None
    ids: tuple[int, ...] = ()
    full: int = -1
    sliding: int = -1
    full_generation: int = 0
    sliding_generation: int = 0
    used: int = 0
    linked: bool = True
    again: bool = False
    maker: KeptSession | None = None
    ending: set[KeptSession] = attrs.Factory(set)
    ends: int = 0
    name: str = ""
    children: dict[tuple[int, ...], PrefixNode] = attrs.Factory(dict)
    tails: dict[tuple[int, ...], PrefixNode] = attrs.Factory(dict)
    order: list[tuple[int, ...]] = attrs.Factory(list)  # of children and tails: their keys, ascending

    @property
    def is_tail(self) -> bool:
        """Whether the block is not whole."""
        return self.parent is not None and len(self.ids) < BLOCK

    def add(self, node: PrefixNode) -> None:
        """Make ``node`` a child or a tail, by its number of ids."""
        siblings = self.tails if node.is_tail else self.children
        if node.ids not in siblings:
            bisect.insort(self.order, node.ids)
        siblings[node.ids] = node

    def near(self, ids: tuple[int, ...]) -> Iterator[PrefixNode]:
        """Of the children and tails those that share most with ``ids``: a few, however many there are."""
        middle = bisect.bisect_left(self.order, ids)
        for key in self.order[max(0, middle - _NEAR) : middle + _NEAR]:
            yield self.tails[key] if len(key) < BLOCK else self.children[key]

    def unlink(self) -> list[PrefixNode]:
        """Take this node and all below it out of the tree: all of them, each before its children."""
        if self.parent is not None:
            siblings = self.parent.tails if self.is_tail else self.parent.children
            if siblings.get(self.ids) is self:
                del siblings[self.ids]
                del self.parent.order[bisect.bisect_left(self.parent.order, self.ids)]
        taken = [self]
        for node in taken:  # grows as it goes: a path may be longer than Python's stack
            taken.extend((*node.children.values(), *node.tails.values()))
            node.children, node.tails, node.order, node.linked = {}, {}, [], False
        return taken

    def path(self, ids: Sequence[int], limit: int) -> list[PrefixNode]:
        """The nodes below this root that hold the first ids, whole blocks within ``limit`` ids only."""
        node, found = self, []
        for start in range(0, limit - BLOCK + 1, BLOCK):
            child = node.children.get(tuple(ids[start : start + BLOCK]))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def ancestors(self) -> Iterator[PrefixNode]:
        """The node and those before it, but for the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@attrs.define(eq=False)
class KeptSession:
    """One session: live while it has an ``end``; ``made`` are the nodes that its sequences added."""

    key: SessionKey
    end: PrefixNode | None = None
    made: set[PrefixNode] = attrs.Factory(set)


@attrs.frozen(kw_only=True)
class Match:
    """What is there of a prompt: whole ``nodes``, then the first ``copied`` ids of a block to copy."""

    nodes: tuple[PrefixNode, ...] = ()
    copied: int = 0
    full: int = -1
    sliding: int = -1

    @property
    def length(self) -> int:
        """Ids that need not be computed."""
        return len(self.nodes) * BLOCK + self.copied


@attrs.frozen
class Partial:
    """A block that holds ``ids`` behind some node's, whole or not."""

    ids: Sequence[int]
    full: int
    sliding: int


def best_match(
    path: Sequence[PrefixNode], rest: Sequence[int], partials: Iterable[Partial], window: int
) -> Match:
    """The longest prefix whose every needed block is there.

    ``path`` holds the prompt's first ids, ``rest`` are those after it that may be reused, ``partials`` what
    follows the last node. The next token's window must find its sliding blocks.
    """
    present = _present_from(path)
    if rest:
        best = max(
            ((common_length(one.ids, rest, len(rest)), one) for one in partials if one.sliding != -1),
            key=lambda found: found[0],
            default=None,
        )
        if best is not None and best[0] and present <= _oldest(len(path) * BLOCK + best[0], window):
            copied, one = best
            return Match(nodes=tuple(path), copied=copied, full=one.full, sliding=one.sliding)
    for depth in range(len(path), 0, -1):
        if _present_from(path[:depth]) <= _oldest(depth * BLOCK, window):
            return Match(nodes=tuple(path[:depth]))
    return Match()


def _present_from(path: Sequence[PrefixNode]) -> int:
    """From which node on the sliding blocks are all there."""
    first = len(path)
    while first and path[first - 1].sliding != -1:
        first -= 1
    return first


def _oldest(length: int, window: int) -> int:
    """The first block that the token after ``length`` ids sees in a sliding layer."""
    return max(0, length - window + 1) // BLOCK
