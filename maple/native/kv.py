"""The native kernels' store: block tables of running sequences over a tree of blocks that all of them share.

A block's way: ``open`` finds what there is of a prompt and adopts it, ``reserve`` takes blocks for a step, ``advance``
puts those that are whole into the tree, ``close`` leaves them there or drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from maple.engine.errors import PromptTooLong
from maple.engine.kv.block_table import BlockTable, SequenceBound
from maple.engine.kv.blocks import BlockMemory, OutOfBlocks
from maple.engine.kv.cache import CacheLimits, Wait
from maple.engine.kv.kept_nodes import KeptNodes
from maple.engine.kv.outside import BlockObserver
from maple.engine.kv.prefix_tree import BLOCK, Match, PrefixNode, SessionKey
from maple.engine.kv.prefixes import Prefixes

FULL, SLIDING = False, True


class NativeCache:
    """Opens, grows and closes block tables within a memory's budget; the engine's thread alone uses it.

    A sequence is opened when its prompt has room; what it needs beyond is taken as it grows, and ``reserve`` says no
    once there is none. All else is kept for reuse, until sequences or the prefix limit ask for it: the longest
    unused goes first, and of a path its end. ``copy`` copies a block's bytes: sliding or not, from, to.
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
        self._kept = KeptNodes(memory, limits.prefix_bytes)
        self.prefixes = Prefixes(self._kept, bound.window)
        self._observer: BlockObserver | None = None

    def observe(self, observer: BlockObserver) -> None:
        """Tell this observer what becomes of whole blocks."""
        self._observer = self._kept.observer = observer

    @property
    def longest(self) -> int:
        """The longest sequence that fits into all of the memory, in tokens."""
        return self._bound.longest(self.memory)

    def bytes_for(self, tokens: int) -> int:
        """The most memory that a sequence of so many tokens takes."""
        return self._bound.bytes_for(tokens, self.memory)

    @property
    def evictions(self) -> int:
        """Kept prefixes that were dropped for room."""
        return self._kept.evictions

    @property
    def sessions(self) -> int:
        """Sessions of which something is kept."""
        return self._kept.sessions.live

    def open(
        self, owner: str, prompt: Sequence[int], longest: int, *, reuse: bool = True
    ) -> BlockTable | Wait:
        """A table for a sequence of up to ``longest`` tokens that has all there is of the prompt but its last id.

        Without ``reuse`` it has nothing. Raises PromptTooLong where it could never fit.
        """
        longest = max(longest, len(prompt))
        if self.bytes_for(longest) > self.memory.budget:
            raise PromptTooLong(limit=self.longest, got=longest)
        domain, prompt = self._limits.domain(owner), tuple(prompt)
        root = self.prefixes.root(domain)
        match = self.prefixes.match(root, prompt, len(prompt) - 1) if reuse else Match()
        if reuse and self.prefixes.is_being_computed(root, prompt, match.length):
            return Wait.PREFIX
        if self.prefixes.open and self._needed(match, len(prompt)) > self._spare_bytes():
            return Wait.MEMORY
        table = self._new_table(domain, root, prompt)
        self._adopt(table, match)
        self._kept.trim()
        return table

    def open_at(self, owner: str, ids: Sequence[int], first: int = 0) -> BlockTable | None:
        """A table that has the first blocks of ``ids`` alone, for others that come with their keys and values.

        None where those are not there, or there is no room for the others.
        """
        domain, path = self._limits.domain(owner), self.path(owner, ids)[:first]
        if len(path) < first or self.bytes_for(len(ids) - first * BLOCK) > self._spare_bytes():
            return None
        table = self._new_table(domain, self.prefixes.root(domain), tuple(ids))
        for node in path:
            self._kept.use(node)
            table.blocks.append(node.full)
            table.nodes.append(node)
            table.sliding_blocks.append(-1)
        table.kept_from = first
        table.ids.extend(ids[: first * BLOCK])
        return table

    def path(self, owner: str, ids: Sequence[int]) -> list[PrefixNode]:
        """The whole blocks of ``ids`` that are there, from the first."""
        return self.prefixes.root(self._limits.domain(owner)).path(ids, len(ids))

    def reserve(self, table: BlockTable, length: int) -> bool:
        """Take the blocks that tokens up to ``length`` need, all or none; whether there was memory for them."""
        missing = -(-length // BLOCK) - len(table.blocks)
        if missing > 0 and missing * self._block_bytes > self._kept.available_bytes:
            return False
        for _ in range(missing):
            self.take_block(table)
        return True

    def take_block(self, table: BlockTable, *, with_sliding: bool = True) -> None:
        """Take the next block, of the sliding layers too unless they are to have none there. Raises OutOfBlocks."""
        full = self._kept.take(FULL)
        try:
            sliding = self._kept.take(SLIDING) if with_sliding else -1
        except OutOfBlocks:
            self.memory.full.free(full)
            raise
        table.blocks.append(full)
        table.sliding_blocks.append(sliding)

    def advance(self, table: BlockTable, ids: Sequence[int]) -> None:
        """``ids`` have been computed: whole blocks are shared from now on, the window moves."""
        table.ids.extend(ids)
        while (len(table.nodes) + 1) * BLOCK <= table.length and table.parent.linked:
            self._register(table)
        self._free_behind_window(table)
        self._kept.trim()

    def close(self, table: BlockTable, *, keep: bool, session: SessionKey | None = None) -> None:
        """The sequence has ended. What it computed is kept, or, where it is not to be trusted, dropped."""
        if table not in self.prefixes.open:
            return
        self._kept.tick()
        if keep:
            self._note_end(table, self._keep_tail(table), session)
            if self._observer is not None:
                self._observer.ended(table, session)
        elif self._observer is not None:
            self._observer.distrusted(table.created)
        nodes = self._release(table)
        if not keep:
            for node in table.created:
                if node.linked:
                    self._kept.drop(node)
        for node in reversed(nodes):  # the last first, so that those before outlive them
            self._kept.let_go(node)
        self._kept.trim()
        self.prefixes.remove(table)

    def find(self, owner: str, ids: Sequence[int]) -> Match:
        """What is there of ``ids``, all of them included."""
        return self.prefixes.match(self.prefixes.root(self._limits.domain(owner)), ids, len(ids))

    def forget(self, owner: str, ids: Sequence[int]) -> None:
        """Drop what is kept of ``ids`` alone: what other sequences go on from stays."""
        self.prefixes.forget(self._limits.domain(owner), ids)

    @property
    def _block_bytes(self) -> int:
        return self.memory.full.block_bytes + self.memory.sliding.block_bytes

    def _spare_bytes(self) -> int:
        """Memory for one sequence more: open ones come to have their prompts and a block beyond."""
        missing = (-(-len(one.prompt) // BLOCK) + 1 - len(one.blocks) for one in self.prefixes.open)
        promised = sum(self.bytes_for(max(0, blocks) * BLOCK) for blocks in missing)
        return self._kept.available_bytes - promised

    def _needed(self, match: Match, tokens: int) -> int:
        """Memory that a prompt takes beyond what running sequences hold: new blocks, and kept ones."""
        full, sliding = self.memory.full.block_bytes, self.memory.sliding.block_bytes
        blocks = -(-(tokens + 1) // BLOCK)
        held = sum(not self._kept.is_unused(node) for node in match.nodes)
        window = min(self._bound.window_blocks, blocks)
        shared = sum(
            node.sliding != -1 and not self._kept.is_sliding_unused(node) for node in match.nodes[-window:]
        )
        return (blocks - held) * full + max(0, window - shared) * sliding

    def _new_table(self, domain: str, root: PrefixNode, prompt: Sequence[int]) -> BlockTable:
        block_bytes = (self.memory.full.block_bytes, self.memory.sliding.block_bytes)
        table = BlockTable(root=root, domain=domain, prompt=prompt, block_bytes=block_bytes)
        self.prefixes.add(table)
        return table

    def _adopt(self, table: BlockTable, match: Match) -> None:
        """Start a table from what was found."""
        oldest = max(0, match.length - self._bound.window + 1) // BLOCK
        for index, node in enumerate(match.nodes):
            self._kept.use(node)
            table.blocks.append(node.full)
            table.nodes.append(node)
            table.sliding_blocks.append(self._kept.use_sliding(node) if index >= oldest else -1)
        table.kept_from = min(oldest, len(match.nodes))
        copied = self._copy_block(table, match) if match.copied else 0
        table.ids.extend(table.prompt[: len(match.nodes) * BLOCK + copied])

    def _copy_block(self, table: BlockTable, match: Match) -> int:
        """Copy the block that the prompt leaves half-way; how many ids that gives."""
        pools = ((FULL, match.full), (SLIDING, match.sliding))
        for sliding, block in pools:
            self.memory.pool(sliding).hold(block)  # lest it is evicted for its own copy
        try:
            self.take_block(table)
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
            self._kept.share(node, table.blocks[index], table.sliding_blocks[index])
            table.parent.add(node)
            table.created.append(node)
            if self._observer is not None:
                self._observer.made(table, node)
        else:
            self._kept.use(node)
            self.memory.full.free(table.blocks[index])
            table.blocks[index] = node.full
            self._merge_sliding(table, index, node)
        table.nodes.append(node)

    def _merge_sliding(self, table: BlockTable, index: int, node: PrefixNode) -> None:
        own = table.sliding_blocks[index]
        if node.sliding == -1:
            self._kept.share(node, -1, own)
        elif own != -1:
            table.sliding_blocks[index] = self._kept.use_sliding(node)
            self.memory.sliding.free(own)

    def _free_behind_window(self, table: BlockTable) -> None:
        """Let go of the sliding blocks that no later token sees."""
        oldest = max(0, table.length - self._bound.window + 1) // BLOCK
        for index in range(table.kept_from, min(oldest, len(table.sliding_blocks))):
            self._release_sliding(table, index)
            table.kept_from = index + 1

    def _release_sliding(self, table: BlockTable, index: int) -> None:
        block, table.sliding_blocks[index] = table.sliding_blocks[index], -1
        if block != -1:
            self._kept.let_go_sliding(table.nodes[index] if index < len(table.nodes) else None, block)

    def _keep_tail(self, table: BlockTable) -> PrefixNode:
        """Keep the ids beyond the last whole block; the node that the sequence ends at."""
        depth = len(table.nodes)
        ids = tuple(table.ids[depth * BLOCK :])
        if not ids or not table.parent.linked or table.sliding_blocks[depth] == -1:
            return table.parent
        tail = table.parent.tails.get(ids)
        if tail is None:
            tail = PrefixNode(parent=table.parent, ids=ids)
            self._kept.share(tail, table.blocks[depth], table.sliding_blocks[depth])
            table.parent.add(tail)
            table.created.append(tail)
            self._kept.keep(tail)
        return tail

    def _note_end(self, table: BlockTable, end: PrefixNode, session: SessionKey | None) -> None:
        if session is not None and end.linked and end is not table.root:
            self._kept.sessions.note(session, end, table.created)
        if end.is_tail:
            self._kept.touch(end)

    def _release(self, table: BlockTable) -> list[PrefixNode]:
        """Give back all blocks but those of the nodes, which are returned."""
        for index in range(table.kept_from, len(table.sliding_blocks)):
            self._release_sliding(table, index)
        for block in table.blocks[len(table.nodes) :]:
            self.memory.full.free(block)
        nodes, table.nodes = table.nodes, []
        table.blocks, table.sliding_blocks = [], []
        return nodes
