"""What the tree of prefixes holds that no sequence needs any more: kept for reuse until memory is asked for."""

from __future__ import annotations

from collections import OrderedDict

from maple.engine.kv.blocks import BlockMemory
from maple.engine.kv.outside import BlockObserver
from maple.engine.kv.prefix_tree import PrefixNode
from maple.engine.kv.session_ends import SessionEnds

LASTING = 0.75


class KeptNodes:
    """The tree's own blocks in the order in which they are given up: the longest unused first, of a path its end.

    What one sequence made and no other went on from goes before what was of use again, or lies on a live session's
    path: a sweep of prompts costs no conversation its prefix. The latter comes to ``LASTING`` of ``limit`` at most,
    so that new conversations can begin to last.

    An unused node is held by the tree alone. One behind the window is in use, but for its sliding block, which
    has left every sequence's window. ``limit`` is the most bytes that both may come to.
    """

    def __init__(self, memory: BlockMemory, limit: int) -> None:
        self.evictions = 0
        self.nbytes = 0
        self.sessions = SessionEnds()
        self.observer: BlockObserver | None = None
        self._memory = memory
        self._limit = limit
        self._clock = 0
        self._passing: OrderedDict[PrefixNode, None] = OrderedDict()
        self._lasting: OrderedDict[PrefixNode, None] = OrderedDict()
        """The unused nodes; those that go last."""
        block_bytes = memory.full.block_bytes + memory.sliding.block_bytes
        self._most_lasting = int(limit * LASTING) // block_bytes
        self._behind_window: OrderedDict[PrefixNode, None] = OrderedDict()

    @property
    def available_bytes(self) -> int:
        """Memory that sequences can be given: what is free, and what is kept."""
        return self._memory.budget - self._memory.taken_bytes + self.nbytes

    def tick(self) -> None:
        """Whatever becomes unused from here on was in use later than all before."""
        self._clock += 1

    def is_unused(self, node: PrefixNode) -> bool:
        """Whether the tree alone holds the node."""
        return node in self._passing or node in self._lasting

    def is_sliding_unused(self, node: PrefixNode) -> bool:
        """Whether the tree alone holds the node's sliding block."""
        return node.sliding != -1 and (self.is_unused(node) or node in self._behind_window)

    def use(self, node: PrefixNode) -> None:
        """A sequence holds the node from now on, but not yet its sliding block. Raises StaleBlock."""
        self._memory.full.hold(node.full, node.full_generation)
        node.again = True
        if self._forget_unused(node):
            node.used = self._clock
            if node.sliding != -1:
                self._note_behind_window(node)

    def use_sliding(self, node: PrefixNode) -> int:
        """A sequence holds the node's sliding block from now on: the block. Raises StaleBlock."""
        self._memory.sliding.hold(node.sliding, node.sliding_generation)
        if node in self._behind_window:
            self._forget_behind_window(node)
        return node.sliding

    def let_go(self, node: PrefixNode) -> None:
        """A sequence holds the node no more, nor its sliding block."""
        if self._memory.full.free(node.full) > 1 or not node.linked:
            return
        if node in self._behind_window:
            self._forget_behind_window(node)
        self._note_unused(node)

    def let_go_sliding(self, node: PrefixNode | None, block: int) -> None:
        """A sequence holds a sliding block no more, which may be the node's."""
        left = self._memory.sliding.free(block)
        if left == 1 and node is not None and node.sliding == block and node.linked:
            node.used = self._clock
            self._note_behind_window(node)

    def share(self, node: PrefixNode, full: int, sliding: int) -> None:
        """The tree holds these blocks of a sequence, too, as the node's; -1 for none."""
        if full != -1:
            node.full = self._memory.full.hold(full)
            node.full_generation = self._memory.full.generation(full)
        if sliding != -1:
            node.sliding = self._memory.sliding.hold(sliding)
            node.sliding_generation = self._memory.sliding.generation(sliding)

    def keep(self, node: PrefixNode) -> None:
        """The tree holds a node that no sequence does."""
        self._note_unused(node)

    def touch(self, node: PrefixNode) -> None:
        """Put an unused node behind all others of its kind: it would have been of use just now."""
        if self._forget_unused(node):
            self._note_unused(node)

    def take(self, sliding: bool) -> int:
        """A block for a sequence, at the cost of kept ones if need be. Raises OutOfBlocks."""
        while not self._memory.fits(sliding):
            if not self._evict():
                break
        return self._memory.take(sliding)

    def trim(self) -> None:
        """Give up what is beyond the limit."""
        while self.nbytes > self._limit:
            if not self._evict():
                break

    def drop(self, node: PrefixNode) -> None:
        """Take a node and all below it out of the tree; who uses their blocks may go on."""
        nodes = node.unlink()
        for one in nodes:
            self._forget_unused(one)
            if one in self._behind_window:
                self._drop_sliding(one)
            self._memory.full.free(one.full)
            if one.sliding != -1:
                self._memory.sliding.free(one.sliding)
                one.sliding = -1
        self.sessions.dropped(nodes)

    def _evict(self) -> bool:
        """Give up what was not used for longest, then what lasts; False where nothing is kept."""
        passing, behind = next(iter(self._passing), None), next(iter(self._behind_window), None)
        if behind is not None and (passing is None or behind.used <= passing.used):
            if self.observer is not None:
                self.observer.leaving(behind, sliding_only=True)
            self._drop_sliding(behind)
            return True
        unused = passing or next(iter(self._lasting), None)
        if unused is None:
            return False
        self.evictions += 1
        if self.observer is not None:
            self.observer.leaving(unused, sliding_only=False)
        self.drop(unused)
        return True

    def _drop_sliding(self, node: PrefixNode) -> None:
        self._forget_behind_window(node)
        self._memory.sliding.free(node.sliding)
        node.sliding = -1

    def _note_unused(self, node: PrefixNode) -> None:
        node.used = self._clock
        (self._lasting if node.again or node.ends else self._passing)[node] = None
        self.nbytes += self._node_bytes(node)
        while len(self._lasting) > self._most_lasting:
            oldest, _ = self._lasting.popitem(last=False)
            oldest.again = False
            self._passing[oldest] = None

    def _forget_unused(self, node: PrefixNode) -> bool:
        """The node is unused no more; whether it was."""
        for nodes in (self._passing, self._lasting):
            if node in nodes:
                del nodes[node]
                self.nbytes -= self._node_bytes(node)
                return True
        return False

    def _note_behind_window(self, node: PrefixNode) -> None:
        self._behind_window[node] = None
        self.nbytes += self._memory.sliding.block_bytes

    def _forget_behind_window(self, node: PrefixNode) -> None:
        del self._behind_window[node]
        self.nbytes -= self._memory.sliding.block_bytes

    def _node_bytes(self, node: PrefixNode) -> int:
        return self._memory.full.block_bytes + (node.sliding != -1) * self._memory.sliding.block_bytes
