"""What is to be written: chosen on the engine's thread, and copied out a little between steps."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence

import attrs

from maple.engine.kv.block_table import BlockTable
from maple.engine.kv.outside import BlockSource
from maple.engine.kv.prefix_tree import BLOCK, PrefixNode, SessionKey
from maple.engine.prefix_disk.names import Names

COPIED = 64 << 20
"""Bytes that may wait for the disk."""
_A_TIME = 16 << 20
"""Bytes that are copied between two steps."""
_MOST_PENDING = 1 << 15


@attrs.frozen(eq=False)
class Block:
    """A block's bytes, or its sliding part's."""

    name: str
    sliding: bool
    data: bytes = attrs.field(repr=False)


@attrs.frozen(eq=False)
class Ended:
    """A sequence's blocks were of use, each with whether it is to last; ``session`` goes on from them."""

    blocks: tuple[tuple[str, bool], ...]
    session: SessionKey | None


@attrs.frozen(eq=False)
class Removed:
    """These blocks are not to be kept."""

    names: tuple[str, ...]


@attrs.frozen(eq=False)
class Task:
    """Something else to do, once all before it is done."""

    run: Callable[[], None]


Errand = Block | Ended | Removed | Task
_Part = tuple[PrefixNode, bool]


def oldest_needed(depth: int, window: int) -> int:
    """The first block whose sliding part the token behind ``depth`` blocks sees."""
    return max(0, depth * BLOCK - window + 1) // BLOCK


def _prompt_depth(table: BlockTable) -> int:
    """Whole blocks that the same prompt would find."""
    return (len(table.prompt) - 1) // BLOCK


class Outbox:
    """Follows a runner's blocks (it is their observer), and hands out ``Errand``s in an order that keeps paths whole.

    Sliding parts are taken where a later prompt may go on: at a message's end (one of the ids ``ends``), at a
    prompt's, at a sequence's. ``known`` says of a block's part whether it is written already. All but ``next`` belongs
    to the engine's thread.
    """

    def __init__(
        self,
        source: BlockSource,
        names: Callable[[], Names | None],
        known: Callable[[tuple[str, bool]], bool],
        ends: frozenset[int],
    ) -> None:
        self._source = source
        self._names = names
        self._known = known
        self._ends = ends
        self._pending: dict[_Part | Ended | Removed | Task, None] = {}
        self._ready: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
        self._handed = self._taken = 0

    @property
    def pending(self) -> bool:
        """Whether something waits to be copied."""
        return bool(self._pending)

    @property
    def empty(self) -> bool:
        """Whether all was taken."""
        return not self._pending and self._ready.empty()

    def next(self) -> Errand | None:
        """On the writer's thread: the next errand, waited for; None at the end."""
        errand = self._ready.get()
        if isinstance(errand, Block):
            self._taken += len(errand.data)
        return errand

    def feed(self) -> None:
        """Copy out some of what is pending, as far as the writer keeps up."""
        copied = 0
        while self._pending and copied < _A_TIME and self._handed - self._taken < COPIED:
            item = next(iter(self._pending))
            del self._pending[item]
            if isinstance(item, tuple):
                copied += self._hand_over(*item)
            else:
                self._ready.put(item)

    def ask(self, run: Callable[[], None]) -> None:
        """Have this done once all before it is."""
        self._add(Task(run))

    def ask_now(self, run: Callable[[], None]) -> None:
        """From any thread: have this done before what is pending."""
        self._ready.put(Task(run))

    def close(self) -> None:
        """Nothing more comes."""
        self._ready.put(None)

    def made(self, table: BlockTable, node: PrefixNode) -> None:
        """A block is to be written, and the sliding parts before it where it ends something."""
        if not self._name(table, node):
            return
        self._want(node, sliding=False)
        depth = len(table.nodes) + 1
        ends_message = bool(self._ends.intersection(node.ids))
        if ends_message or depth == _prompt_depth(table):
            self._want_window(node, depth)
        if ends_message:
            self._want_window(node.parent, depth - 1)

    def leaving(self, node: PrefixNode, *, sliding_only: bool) -> None:
        """What was not copied yet is copied now, if there is room."""
        for part in ((node, True),) if sliding_only else ((node, False), (node, True)):
            if part in self._pending:
                del self._pending[part]
                if self._handed - self._taken < COPIED:
                    self._hand_over(*part)

    def ended(self, table: BlockTable, session: SessionKey | None) -> None:
        """What is missing of a sequence is written, and all of it was of use."""
        nodes = [node for node in table.nodes if self._name(table, node)]
        if not nodes or len(nodes) < len(table.nodes):
            return
        for node in nodes:
            self._want(node, sliding=False)
        for depth in {len(nodes), min(len(nodes), _prompt_depth(table))} - {0}:
            self._want_window(nodes[depth - 1], depth)
        self._add(Ended(tuple((node.name, node.again or node.ends > 0) for node in nodes), session))

    def distrusted(self, nodes: Sequence[PrefixNode]) -> None:
        """What was written of them goes."""
        if names := tuple(node.name for node in nodes if node.name):
            self._add(Removed(names))

    def _name(self, table: BlockTable, node: PrefixNode) -> str:
        """The node's name, given now where it has none; empty while there is no secret or the path has none."""
        if not node.name and (names := self._names()) is not None and node.parent is not None:
            is_first = node.parent.parent is None
            before = names.tag(table.domain) if is_first else node.parent.name
            node.name = names.after(before, node.ids) if before else ""
        return node.name

    def _want_window(self, node: PrefixNode | None, depth: int) -> None:
        """The sliding parts that a token behind ``node``, the last of ``depth`` blocks, sees."""
        for _ in range(depth - oldest_needed(depth, self._source.window)):
            if node is None or node.parent is None:
                break
            self._want(node, sliding=True)
            node = node.parent

    def _want(self, node: PrefixNode, *, sliding: bool) -> None:
        if node.name and not self._known((node.name, sliding)):
            self._add((node, sliding))

    def _add(self, item: _Part | Ended | Removed | Task) -> None:
        if len(self._pending) < _MOST_PENDING or isinstance(item, Removed | Task):
            self._pending[item] = None

    def _hand_over(self, node: PrefixNode, sliding: bool) -> int:
        block = node.sliding if sliding else node.full
        if not node.linked or block == -1 or self._known((node.name, sliding)):
            return 0
        data = self._source.copy(block, sliding=sliding)
        self._handed += len(data)
        self._ready.put(Block(node.name, sliding, data))
        return len(data)
