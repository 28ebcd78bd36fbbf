"""The store of keys and values through random histories: every block is somebody's, and holds what they wrote."""

from __future__ import annotations

import os
import random
import sys
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from maple.engine.errors import PromptTooLong
from maple.engine.kv.block_table import BlockTable, SequenceBound
from maple.engine.kv.blocks import BlockMemory, BlockPool, OutOfBlocks, StaleBlock
from maple.engine.kv.cache import CacheLimits, Wait
from maple.engine.kv.kept_nodes import KeptNodes
from maple.engine.kv.prefix_tree import BLOCK, PrefixNode
from maple.native.kv import NativeCache

CASES = int(os.environ.get("STRESS_CASES", "80"))
FULL_BYTES, SLIDING_BYTES, WINDOW, STEP = 10, 30, 100, 96


@attrs.define(eq=False)
class Store:
    """A cache whose blocks hold the ids that were written to them: what the kernels would read can be compared."""

    blocks: int = 12
    prefix_blocks: int = 12
    contents: dict[tuple[bool, int], list[int]] = attrs.Factory(dict)
    fail_copies: bool = False
    cache: NativeCache = attrs.field(init=False)
    memory: BlockMemory = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        each = FULL_BYTES + SLIDING_BYTES
        self.memory = BlockMemory(
            BlockPool(2000, FULL_BYTES), BlockPool(2000, SLIDING_BYTES), self.blocks * each
        )
        bound = SequenceBound(window=WINDOW, step=STEP)
        self.cache = NativeCache(
            self.memory, bound, CacheLimits(prefix_bytes=self.prefix_blocks * each), self.copy
        )

    def copy(self, sliding: bool, source: int, target: int) -> None:
        self.contents[sliding, target] = list(self.contents[sliding, source])

    def run(self, table: BlockTable, ids: list[int]) -> None:
        """What a step writes, after it has checked all that it reads."""
        self.check(table)
        for position, token in enumerate(ids, table.length):
            for sliding, blocks in ((False, table.blocks), (True, table.sliding_blocks)):
                content = self.contents.setdefault((sliding, blocks[position // BLOCK]), [])
                content[position % BLOCK :] = [token]
        self.cache.advance(table, ids)
        self.check(table)

    def check(self, table: BlockTable) -> None:
        """Its blocks hold its own ids, in the sliding layers as far back as the next token sees."""
        assert len(table.blocks) == len(table.sliding_blocks)
        oldest = max(0, table.length - WINDOW + 1) // BLOCK
        for index in range(-(-table.length // BLOCK)):
            wanted = table.ids[index * BLOCK : (index + 1) * BLOCK]
            assert self.contents[False, table.blocks[index]][: len(wanted)] == wanted
            if index >= oldest:
                assert self.contents[True, table.sliding_blocks[index]][: len(wanted)] == wanted

    def nodes(self) -> list[PrefixNode]:
        found = list(self.cache.prefixes.roots.values())
        for node in found:
            found.extend((*node.children.values(), *node.tails.values()))
        return [node for node in found if node.parent is not None]

    def check_owners(self) -> None:
        """Every block has as many holders as tables and nodes name it, and no other is taken."""
        tables, nodes = self.cache.prefixes.open, self.nodes()
        full = Counter([*(b for t in tables for b in t.blocks), *(n.full for n in nodes)])
        sliding = Counter([*(b for t in tables for b in t.sliding_blocks), *(n.sliding for n in nodes)])
        del sliding[-1]
        for pool, held in ((self.memory.full, full), (self.memory.sliding, sliding)):
            assert pool.taken == len(held)
            assert all(pool.holders(block) == count for block, count in held.items())
        assert self.memory.taken_bytes <= self.memory.budget
        assert all(node.parent is not None and node.parent.linked for node in nodes)
        assert self.cache.sessions == sum(len(node.ending) for node in nodes)


def finish(store: Store, ids: list[int], session: str = "", *, keep: bool = True) -> int:
    """Run ids as one sequence: how many were there already."""
    table = store.cache.open("", ids, len(ids))
    assert isinstance(table, BlockTable)
    reused = table.length
    while table.length < len(ids):
        part = ids[table.length : table.length + STEP]
        assert store.cache.reserve(table, table.length + len(part))
        store.run(table, part)
    store.cache.close(table, keep=keep, session=("", session) if session else None)
    return reused


class History:
    """Sequences of three conversations by chance, with failures, cancellations, evictions and deletions."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - the same histories every time
        self.store = Store(
            blocks=self.chance.choice([5, 8, 16]), prefix_blocks=self.chance.choice([0, 4, 16])
        )
        self.running: list[tuple[BlockTable, list[int], str]] = []

    def play(self, moves: int) -> None:
        for _ in range(moves):
            begun = [self.go_on, self.go_on, self.go_on, self.end] if self.running else []
            self.chance.choice([self.begin, self.delete, *begun])()
            self.store.check_owners()
        while self.running:
            self.end()
        self.store.check_owners()

    def begin(self) -> None:
        start = self.chance.randrange(3)
        length = self.chance.choice([1, 63, 64, 65, 128, 200, self.chance.randrange(1, 300)])
        ids = [(start * 1000 + at) for at in range(length)]
        if self.chance.random() < 0.5:
            ids[self.chance.randrange(length) :] = [self.chance.randrange(10**6) for _ in range(40)]
        try:
            table = self.store.cache.open("", ids, len(ids) + 64)
        except PromptTooLong:
            return
        if isinstance(table, Wait):
            assert self.running, "with all memory free nobody waits"
            return
        assert table.ids == ids[: table.length]
        self.store.check(table)
        self.running.append((table, ids, self.chance.choice(["", "s1", "s2", "s3"])))

    def go_on(self) -> None:
        """A step of one sequence; where memory has run out, the youngest is put back."""
        table, ids, _ = self.chance.choice(self.running)
        part = ids[table.length : table.length + self.chance.randrange(1, STEP)] or [
            self.chance.randrange(10**6)
        ]
        while table in self.store.cache.prefixes.open:
            if self.store.cache.reserve(table, table.length + len(part)):
                self.store.run(table, part)
                break
            assert len(self.running) > 1 or table.length + len(part) > len(ids) + 64
            self.store.cache.close(self.running.pop()[0], keep=True)

    def end(self) -> None:
        table, _, session = self.running.pop(self.chance.randrange(len(self.running)))
        keep = self.chance.random() < 0.7
        self.store.cache.close(table, keep=keep, session=("", session) if session else None)

    def delete(self) -> None:
        session = self.chance.choice(["s1", "s2", "s3"])
        own = [table for table, _, theirs in self.running if theirs == session]
        self.store.cache.prefixes.forget_session(("", session), own)
        assert not self.store.cache.prefixes.session_ids(("", session))


@pytest.mark.parametrize("seed", range(CASES))
def test_no_history_mixes_up_blocks(seed: int) -> None:
    """Whatever fails, leaves or is put back when: nobody's block is another's, and none is lost."""
    History(seed).play(120)


def test_a_neighbour_of_a_failed_sequence_goes_on_in_blocks_of_its_own() -> None:
    """Its blocks stay its own though the nodes that it shared were dropped, and it adds none to dropped ones."""
    store = Store()
    prompt = list(range(130))
    failing = store.cache.open("", prompt, 400)
    assert isinstance(failing, BlockTable)
    assert store.cache.reserve(failing, 96)
    store.run(failing, prompt[:96])
    neighbour = store.cache.open("", [*prompt[:64], *range(500, 600)], 400)
    assert isinstance(neighbour, BlockTable)
    assert neighbour.length == 64
    store.cache.close(failing, keep=False)
    store.check_owners()
    assert store.cache.reserve(neighbour, 160)
    store.run(neighbour, list(range(500, 596)))
    assert finish(store, [*range(1000, 1300)]) == 0
    store.check(neighbour)
    store.cache.close(neighbour, keep=True)
    store.check_owners()


def test_a_path_longer_than_the_stack_is_dropped() -> None:
    """62,000 tokens are a thousand nodes in a row: no recursion goes through them."""
    store = Store(blocks=1200, prefix_blocks=1200)
    ids = list(range(BLOCK * 1100))
    assert finish(store, ids, "long") == 0
    assert store.cache.prefixes.forget_session(("", "long"))
    store.check_owners()
    assert store.memory.taken_bytes == 0


def test_a_note_of_a_block_that_was_taken_anew_is_refused() -> None:
    """A block's generation is checked whenever it is used by what was noted of it."""
    store = Store()
    kept = KeptNodes(store.memory, 1000)
    block = store.memory.full.take()
    node = PrefixNode(parent=PrefixNode(), ids=tuple(range(64)))
    kept.share(node, block, -1)
    store.memory.full.free(block)
    store.memory.full.free(block)
    assert store.memory.full.take() == block
    with pytest.raises(StaleBlock):
        kept.use(node)


@pytest.mark.parametrize("blocks", range(1, 8))
def test_memory_smaller_than_the_window_never_breaks_a_table(blocks: int) -> None:
    """The same prompt again and again either fits, every time, or never does."""
    store = Store(blocks=blocks, prefix_blocks=blocks)
    outcomes = set()
    for _ in range(6):
        try:
            finish(store, list(range(150)))
            outcomes.add("fits")
        except PromptTooLong:
            outcomes.add("too long")
        store.check_owners()
    assert len(outcomes) == 1


def test_taking_half_a_block_takes_nothing() -> None:
    """A block for the full layers without one for the sliding layers is given back."""
    store = Store(blocks=4, prefix_blocks=0)
    table = store.cache.open("", list(range(10)), 10)
    assert isinstance(table, BlockTable)
    for _ in range(3):
        store.cache.take_block(table)
    elsewhere = store.memory.take(sliding=False)
    with pytest.raises(OutOfBlocks):
        store.cache.take_block(table)
    store.memory.full.free(elsewhere)
    assert len(table.blocks) == len(table.sliding_blocks)
    store.check_owners()


def test_a_deleted_session_is_gone_with_its_earlier_turns() -> None:
    """Also where a turn was asked for twice, or went another way since: nothing of it is found."""
    store = Store(blocks=60, prefix_blocks=60)
    prompt = list(range(176))
    for answer in (range(900, 930), range(700, 720), range(600, 700)):
        finish(store, [*prompt, *answer], "s")
    assert finish(store, [*prompt, 5]) > 0
    assert store.cache.prefixes.forget_session(("", "s"))
    assert finish(store, [*prompt, 6]) == 0
    store.check_owners()


def test_a_deleted_session_leaves_what_another_has() -> None:
    """What a second session of the key goes on from stays, the first one's own turns go."""
    store = Store(blocks=60, prefix_blocks=60)
    system = list(range(128))
    finish(store, [*system, *range(1000, 1200)], "one")
    finish(store, [*system, *range(2000, 2200)], "two")
    assert store.cache.prefixes.forget_session(("", "one"))
    assert len(store.cache.prefixes.session_ids(("", "two"))) == 328
    assert finish(store, [*system, *range(1000, 1200)]) == 128
    assert store.cache.find("", [*system, *range(2000, 2200)]).length == 328


def test_sessions_that_share_a_beginning_leave_with_what_is_their_own() -> None:
    """Once its own blocks are evicted a session is gone, though the system prompt is still there for others."""
    store = Store(blocks=40, prefix_blocks=20)
    system = list(range(128))
    for number in range(60):
        finish(store, [*system, *range(1000 * number + 1000, 1000 * number + 1070)], f"s{number}")
        assert store.cache.sessions <= 20
    assert len(store.cache.prefixes.session_ids(("", "s59"))) == 198
    assert not store.cache.prefixes.session_ids(("", "s0"))
    store.check_owners()


@pytest.mark.parametrize("session", ["s", ""])
def test_a_sweep_of_other_prompts_costs_no_conversation_its_prefix(session: str) -> None:
    """Neither one that is a live session, nor what a second turn went on from."""
    store, talk = Store(blocks=16), list(range(200))
    finish(store, talk, session)
    if not session:
        assert finish(store, [*talk, 1, 2]) == len(talk)
    for number in range(1, 40):
        finish(store, [number * 1000 + at for at in range(2 * BLOCK)])
        store.check_owners()
    assert finish(store, [*talk, 3]) >= 3 * BLOCK


def test_a_new_conversation_finds_its_first_turn_among_many_that_last() -> None:
    """What was of use again never takes all the room, however much of it there is."""
    store = Store(blocks=16)
    for number in range(1, 12):
        for further in range(2):
            finish(store, [*(number * 1000 + at for at in range(2 * BLOCK)), further])
    talk = list(range(2 * BLOCK))
    finish(store, talk)
    assert finish(store, [*talk, 1]) == len(talk)


def bytecodes(work: Callable[[], object]) -> int:
    """How many instructions of Python some work takes: the same on every machine."""
    count, before = 0, sys.gettrace()

    def trace(frame: types.FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("session", ["", "s"], ids=["prefixes", "sessions"])
@pytest.mark.parametrize("beginning", [0, 2 * BLOCK], ids=["of their own", "that share a beginning"])
def test_what_is_idle_costs_a_step_nothing(session: str, beginning: int) -> None:
    """With twice as much kept, a sequence that evicts some of it takes the same work, to a tenth."""

    def work(kept: int) -> int:
        store = Store(blocks=4 * kept, prefix_blocks=3 * kept)
        for number in range(kept):
            own = [number + 1000] * (3 * BLOCK - beginning)
            finish(store, [7] * beginning + own, f"{session}{number}" if session else "")

        def step() -> None:
            table = store.cache.open("", [5] * 3 * BLOCK, 3 * BLOCK)
            assert isinstance(table, BlockTable)
            for _ in range(3):
                assert store.cache.reserve(table, table.length + BLOCK)
                store.cache.advance(table, [5] * BLOCK)
            store.cache.close(table, keep=True, session=("", "new"))
            assert store.cache.sessions >= bool(session)

        return bytecodes(step)

    assert work(80) <= work(40) * 1.1
