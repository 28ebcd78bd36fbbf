"""The native kernels' store: block tables of running sequences over a tree of blocks that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from maple.engine.api import PromptTooLong
from maple.engine.kv.block_table import BlockTable, SequenceBound
from maple.engine.kv.blocks import BlockMemory, OutOfBlocks
from maple.engine.kv.cache import CacheLimits, Wait
from maple.engine.kv.kept_nodes import KeptNodes
from maple.engine.kv.prefix_tree import BLOCK, Match, Partial, PrefixNode, best_match, common_length

__all__ = ["NativeCache"]

FULL, SLIDING = False, True


class NativeCache:
    """Opens, grows and closes block tables within a memory's budget; the engine's thread alone uses it.

    Each open sequence has reserved what it may come to hold, so none can run out of blocks. All else is kept
    for reuse, until the reserved memory or the prefix limit asks for it: the longest unused goes first, and of
    a path its end. ``copy`` copies a block's bytes: sliding or not, from, to.
    """

    def __init__(
        self,
        memory: BlockMemory,
        bound: SequenceBound,
        limits: CacheLimits,
        copy: Callable[[bool, int, int], None],
    ) -> None:
        self.memory = memory
        self._bound = bound
        self._limits = limits
        self._copy = copy
        self._reserved = 0
        self._kept = KeptNodes(memory, limits.prefix_bytes)
        self._roots: dict[str, PrefixNode] = {}
        self._open: set[BlockTable] = set()

    @property
    def longest(self) -> int:
        """The longest sequence that fits into all of the memory, in tokens."""
        return self._bound.longest(self.memory)

    @property
    def evictions(self) -> int:
        """Kept prefixes that were dropped for room."""
        return self._kept.evictions

    @property
    def open_tables(self) -> int:
        """Sequences that run."""
        return len(self._open)

    def open(self, owner: str, prompt: Sequence[int], longest: int) -> BlockTable | Wait:
        """A table for a sequence of up to ``longest`` tokens that has all there is of the prompt but its last id.

        Raises PromptTooLong where it could never fit.
        """
        need = self._bound.bytes_for(max(longest, len(prompt)), self.memory)
        if need > self.memory.budget:
            raise PromptTooLong(limit=self._bound.longest(self.memory), got=max(longest, len(prompt)))
        domain = self._limits.domain(owner)
        root = self._roots.get(domain, PrefixNode())
        match = self._match(root, prompt, len(prompt) - 1)
        if self._is_computed_by_another(root, prompt, match.length):
            return Wait.PREFIX
        if self._reserved + need > self.memory.budget:
            return Wait.MEMORY
        table = self._new_table(domain, root, prompt, need)
        self._adopt(table, match)
        self._kept.trim()
        return table

    def open_empty(self, owner: str, ids: Sequence[int]) -> BlockTable | Wait:
        """A table that finds nothing computed, for ``ids`` that come with their keys and values."""
        need = self._bound.bytes_for(len(ids), self.memory)
        if self._reserved + need > self.memory.budget:
            return Wait.MEMORY
        domain = self._limits.domain(owner)
        return self._new_table(domain, self._roots.get(domain, PrefixNode()), ids, need)

    def reach(self, table: BlockTable, length: int) -> None:
        """Take the blocks that tokens up to ``length`` need."""
        while len(table.blocks) * BLOCK < length:
            self.reach_block(table)

    def reach_block(self, table: BlockTable, *, with_sliding: bool = True) -> None:
        """Take the next block, of the sliding layers too unless they are to have none there."""
        table.blocks.append(self._kept.take(FULL))
        table.sliding_blocks.append(self._kept.take(SLIDING) if with_sliding else -1)

    def advance(self, table: BlockTable, ids: Sequence[int]) -> None:
        """``ids`` have been computed: whole blocks are shared from now on, the window moves."""
        table.ids.extend(ids)
        while (len(table.nodes) + 1) * BLOCK <= table.length:
            self._register(table)
        self._slide(table)
        self._kept.trim()

    def close(self, table: BlockTable, *, keep: bool) -> None:
        """The sequence has ended. What it computed is kept, or, where it is not to be trusted, dropped."""
        if table not in self._open:
            return
        self._open.discard(table)
        self._reserved -= table.reserved
        self._kept.tick()
        if keep:
            self._keep_tail(table)
        self._release(table)
        if not keep:
            for node in reversed(table.created):
                self._kept.drop(node)
        self._kept.trim()
        if not (table.root.children or table.root.tails) and not any(
            one.root is table.root for one in self._open
        ):
            self._roots.pop(table.domain, None)

    def find(self, owner: str, ids: Sequence[int]) -> Match:
        """What is there of ``ids``, all of them included."""
        root = self._roots.get(self._limits.domain(owner))
        return Match() if root is None else self._match(root, ids, len(ids))

    def forget(self, owner: str, ids: Sequence[int]) -> None:
        """Drop what is kept of ``ids`` alone: what other sequences go on from stays."""
        root = self._roots.get(self._limits.domain(owner))
        if root is None:
            return
        path = root.path(ids, len(ids))
        tail = (path[-1] if path else root).tails.get(tuple(ids[len(path) * BLOCK :]))
        for node in (*([tail] if tail else ()), *reversed(path)):
            if node.children or node.tails or not self._kept.is_unused(node):
                break
            self._kept.drop(node)

    def _new_table(self, domain: str, root: PrefixNode, prompt: Sequence[int], need: int) -> BlockTable:
        table = BlockTable(
            root=root,
            domain=domain,
            prompt=tuple(prompt),
            reserved=need,
            block_bytes=(self.memory.full.block_bytes, self.memory.sliding.block_bytes),
        )
        self._roots[domain] = root
        self._open.add(table)
        self._reserved += need
        return table

    def _match(self, root: PrefixNode, ids: Sequence[int], limit: int) -> Match:
        path = root.path(ids, limit)
        rest = ids[len(path) * BLOCK : min(limit, (len(path) + 1) * BLOCK)]
        return best_match(path, tuple(rest), self._partials(root, path), self._bound.window)

    def _partials(self, root: PrefixNode, path: Sequence[PrefixNode]) -> Iterator[Partial]:
        node, depth = path[-1] if path else root, len(path)
        for one in (*node.children.values(), *node.tails.values()):
            yield Partial(one.ids, one.full, one.sliding)
        for table in self._open:
            if table.parent is node and len(table.nodes) == depth and table.length > depth * BLOCK:
                own = tuple(table.ids[depth * BLOCK :])
                yield Partial(own, table.blocks[depth], table.sliding_blocks[depth])

    def _is_computed_by_another(self, root: PrefixNode, prompt: Sequence[int], there: int) -> bool:
        prompt = tuple(prompt)
        for table in self._open:
            if table.root is root and table.length < len(table.prompt):
                common = common_length(table.prompt, prompt, len(prompt) - 1)
                if table.length < common and common - there >= BLOCK:
                    return True
        return False

    def _adopt(self, table: BlockTable, match: Match) -> None:
        """Start a table from what was found."""
        oldest = max(0, match.length - self._bound.window + 1) // BLOCK
        for index, node in enumerate(match.nodes):
            self._kept.use(node)
            table.blocks.append(node.full)
            table.sliding_blocks.append(self._kept.use_sliding(node) if index >= oldest else -1)
        table.nodes.extend(match.nodes)
        table.kept_from = min(oldest, len(match.nodes))
        copied = self._copy_block(table, match) if match.copied else 0
        table.ids.extend(table.prompt[: len(match.nodes) * BLOCK + copied])

    def _copy_block(self, table: BlockTable, match: Match) -> int:
        """Copy the block that the prompt leaves half-way; how many ids that gives."""
        pools = ((FULL, match.full), (SLIDING, match.sliding))
        for sliding, block in pools:
            self.memory.pool(sliding).hold(block)  # lest it is evicted for its own copy
        try:
            self.reach(table, len(match.nodes) * BLOCK + 1)
        except OutOfBlocks:
            return 0
        else:
            for sliding, block in pools:
                self._copy(sliding, block, (table.sliding_blocks if sliding else table.blocks)[-1])
            return match.copied
        finally:
            for sliding, block in pools:
                self.memory.pool(sliding).free(block)

    def _register(self, table: BlockTable) -> None:
        """Put the table's next whole block into the tree, or take over the one that is there."""
        index = len(table.nodes)
        ids = tuple(table.ids[index * BLOCK : (index + 1) * BLOCK])
        node = table.parent.children.get(ids)
        if node is None:
            node = PrefixNode(parent=table.parent, ids=ids)
            node.full = self.memory.full.hold(table.blocks[index])
            self._lend_sliding(node, table.sliding_blocks[index])
            table.parent.add(node)
            table.created.append(node)
        else:
            self._kept.use(node)
            self.memory.full.free(table.blocks[index])
            table.blocks[index] = node.full
            self._merge_sliding(table, index, node)
        table.nodes.append(node)

    def _merge_sliding(self, table: BlockTable, index: int, node: PrefixNode) -> None:
        own = table.sliding_blocks[index]
        if node.sliding == -1:
            self._lend_sliding(node, own)
        elif own != -1:
            table.sliding_blocks[index] = self._kept.use_sliding(node)
            self.memory.sliding.free(own)

    def _lend_sliding(self, node: PrefixNode, block: int) -> None:
        if block != -1:
            node.sliding = self.memory.sliding.hold(block)

    def _slide(self, table: BlockTable) -> None:
        """Let go of the sliding blocks that no later token sees."""
        oldest = max(0, table.length - self._bound.window + 1) // BLOCK
        for index in range(table.kept_from, min(oldest, len(table.sliding_blocks))):
            self._release_sliding(table, index)
            table.kept_from = index + 1

    def _release_sliding(self, table: BlockTable, index: int) -> None:
        block, table.sliding_blocks[index] = table.sliding_blocks[index], -1
        if block != -1:
            self._kept.let_go_sliding(table.nodes[index] if index < len(table.nodes) else None, block)

    def _keep_tail(self, table: BlockTable) -> None:
        """Keep the ids beyond the last whole block."""
        depth = len(table.nodes)
        ids = tuple(table.ids[depth * BLOCK :])
        if not ids or table.sliding_blocks[depth] == -1 or not (table.parent.linked or not depth):
            return
        tail = table.parent.tails.get(ids)
        if tail is None:
            tail = PrefixNode(parent=table.parent, ids=ids)
            tail.full = self.memory.full.hold(table.blocks[depth])
            tail.sliding = self.memory.sliding.hold(table.sliding_blocks[depth])
            table.parent.add(tail)
            self._kept.add(tail)
        else:
            self._kept.touch(tail)

    def _release(self, table: BlockTable) -> None:
        """Give back all blocks, the last first, so that those before outlive them."""
        for index in range(table.kept_from, len(table.sliding_blocks)):
            self._release_sliding(table, index)
        for block in table.blocks[len(table.nodes) :]:
            self.memory.full.free(block)
        for node in reversed(table.nodes):
            self._kept.let_go(node)
        table.blocks, table.sliding_blocks, table.nodes = [], [], []
