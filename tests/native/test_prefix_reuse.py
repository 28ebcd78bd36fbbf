"""Keys and values found again: what is reused, and that it changes no bit of any answer."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from maple_testing.engine import never

from maple.engine.kv.cache import Wait
from maple.engine.runner import SequenceSlice
from maple.native.library import Unavailable, available
from maple.native.loader import KernelOptions, native_loader
from maple.native.runner import NativeRunner
from maple.native.weights import NativeSource

pytestmark = pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="the kernels are not built here: torch serves alone"
)

Row = npt.NDArray[np.float32]
WINDOW = 32  # of the golden model: its sliding layers forget early
ARCHIVE = {"kv_cache_mb": 64, "prefix_cache_mb": 32}


@pytest.fixture(scope="module")
def load(golden_folder: pathlib.Path) -> Iterator[Callable[..., NativeRunner]]:
    """A golden model's runner with its own cache; shut at the end."""
    made: list[NativeRunner] = []

    def run(**options: Any) -> NativeRunner:
        kernels = KernelOptions(threads=2, slots=8, **{**ARCHIVE, **options})
        loaded = native_loader(NativeSource(source=str(golden_folder / "mlx-2bit")), kernels)(never)
        assert isinstance(loaded.runner, NativeRunner)
        made.append(loaded.runner)
        return loaded.runner

    yield run
    for one in made:
        one.shut()


@pytest.fixture(scope="module")
def ids(golden_folder: pathlib.Path) -> list[int]:
    """A thousand ids of golden text."""
    prompts = json.loads((golden_folder / "prompts.json").read_text())["prompts"]
    text = list(itertools.chain.from_iterable(prompts))
    generator = np.random.default_rng(3)
    return [int(token) for token in generator.choice(text, 1000)]


@pytest.fixture(scope="module")
def bare(load: Callable[..., NativeRunner]) -> NativeRunner:
    """A runner that keeps nothing."""
    return load(prefix_cache_mb=0)


def run(
    runner: NativeRunner, ids: Sequence[int], *, owner: str = "", chunk: int = 96, keep: bool = True
) -> tuple[int, Row]:
    """How much of the ids was reused, and the logits after the last."""
    cache = runner.open(owner, ids)
    assert not isinstance(cache, Wait)
    row: Row | None = None
    for start in range(cache.reused, len(ids), chunk):
        part = ids[start : start + chunk]
        (row,) = runner.step(
            [SequenceSlice(cache=cache, ids=part, start=start, want_logits=True, cancelled=never)]
        )
    runner.close(cache, keep=keep)
    assert row is not None
    return cache.reused, row


def same(runner: NativeRunner, bare: NativeRunner, ids: Sequence[int], owner: str = "") -> int:
    """Run with and without reuse, compare the bits, and return how much was reused."""
    reused, row = run(runner, ids, owner=owner)
    np.testing.assert_array_equal(row, run(bare, ids)[1])
    return reused


def test_the_same_prompt_again_computes_one_id(load: Any, bare: NativeRunner, ids: list[int]) -> None:
    """At least one id is computed, for its logits."""
    runner = load()
    assert same(runner, bare, ids[:333]) == 0
    assert same(runner, bare, ids[:333]) == 332


@pytest.mark.parametrize("cut", [1, 31, 63, 64, 65, 128, 200, 299, 300])
def test_any_cut_is_found(load: Any, bare: NativeRunner, ids: list[int], cut: int) -> None:
    """Where a prompt leaves what was computed, to the very id, also far behind the sliding window."""
    runner = load()
    run(runner, ids[:300])
    assert same(runner, bare, [*ids[:cut], 7 if ids[cut] != 7 else 8, *ids[500:600]]) == cut


def test_four_forms_of_a_next_turn(load: Any, bare: NativeRunner, ids: list[int]) -> None:
    """Reasoning sent back, reasoning dropped, a system prompt shared, the last message edited."""
    runner = load()
    history, reasoning, answer, new = ids[:400], ids[400:600], ids[600:650], ids[650:700]
    run(runner, [*history, *reasoning, *answer])
    assert same(runner, bare, [*history, *reasoning, *answer, *new]) == 650
    assert same(runner, bare, [*history, *answer, *new]) == 400
    assert same(runner, bare, [*history[:300], *new]) == 300
    assert same(runner, bare, [*history[:390], *ids[800:900]]) == 390


def test_running_sequences_lend_what_they_have(load: Any, bare: NativeRunner, ids: list[int]) -> None:
    """A prompt that a running sequence is computing waits for it; what has been computed is shared at once."""
    runner = load()
    first = runner.open("", ids[:300])
    slices = [
        SequenceSlice(cache=first, ids=ids[at : at + 100], start=at, want_logits=True, cancelled=never)
        for at in (0, 100, 200)
    ]
    runner.step(slices[:1])
    assert runner.open("", ids[:300]) is Wait.PREFIX
    assert runner.open("", ids[:170]) is Wait.PREFIX
    assert same(runner, bare, [*ids[:90], *ids[500:600]]) == 90
    assert runner.open("other", ids[:300]).reused == 0
    runner.step(slices[1:2])
    runner.step(slices[2:])
    assert same(runner, bare, ids[:300]) == 299
    runner.close(first)


def test_owners_share_nothing_unless_they_are_told_to(load: Any, bare: NativeRunner, ids: list[int]) -> None:
    """Another key's prompt is not there, whatever it says."""
    runner = load()
    run(runner, ids[:200], owner="one")
    assert same(runner, bare, ids[:200], owner="two") == 0
    assert same(runner, bare, ids[:200], owner="one") == 199
    shared = load(shared_prefix_cache=True)
    run(shared, ids[:200], owner="one")
    assert same(shared, bare, ids[:200], owner="two") == 199


def test_what_was_not_used_for_longest_goes_first(load: Any, bare: NativeRunner, ids: list[int]) -> None:
    """The limit holds after every sequence, and what was used last is still there."""
    runner = load(prefix_cache_mb=1)
    for turn in range(40):
        prompt = [turn, *ids[turn * 7 : turn * 7 + 300]]
        run(runner, prompt)
        assert 0 < runner.kv_bytes <= 1 << 20
        assert runner.resident("", prompt) == len(prompt)
    assert runner.evictions > 0
    assert runner.resident("", [0, *ids[:300]]) == 0


def test_a_failed_sequence_leaves_nothing_for_others(load: Any, ids: list[int]) -> None:
    """What it computed is not to be trusted, and is given back."""
    runner = load()
    run(runner, ids[:300], keep=False)
    assert (runner.kv_bytes, runner.kv_blocks, runner.resident("", ids[:300])) == (0, 0, 0)


def test_forgetting_leaves_what_others_go_on_from(load: Any, ids: list[int]) -> None:
    """A conversation's own blocks go, a system prompt that another one starts with stays."""
    runner = load()
    one, two = [*ids[:200], *ids[300:500]], [*ids[:200], *ids[600:800]]
    run(runner, one)
    run(runner, two)
    runner.forget("", one)
    assert runner.resident("", two) == 400
    assert runner.resident("", one) == 200
    runner.forget("", two)
    assert runner.kv_bytes == 0


def test_a_snapshot_restored_elsewhere_goes_on_alike(load: Any, bare: NativeRunner, ids: list[int]) -> None:
    """Copied out of one store and into another, also of a running sequence, it gives the same bits."""
    runner, other = load(), load()
    run(runner, ids[:500])
    snapshot = runner.snapshot("", ids[:460])
    assert snapshot is not None
    assert (len(snapshot.ids), snapshot.kv_format) == (460, other.kv_format)
    assert other.restore("", snapshot) == 460
    assert same(other, bare, [*ids[:460], *ids[700:720]]) == 460
    assert same(other, bare, [*ids[:150], *ids[700:720]]) == 150
    assert runner.snapshot("", [9, 9, 9]) is None


moves = st.lists(
    st.tuples(
        st.integers(0, 3),  # which beginning
        st.integers(1, 400),  # how much of it
        st.integers(0, 60),  # how much of its own
        st.sampled_from(["one", "two"]),
        st.integers(1, 130),  # chunk
        st.booleans(),  # whether it is kept
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=moves)
def test_no_history_changes_a_bit(
    load: Any, bare: NativeRunner, ids: list[int], moves: Any, tight: NativeRunner
) -> None:
    """Whatever ran before, and however little memory there is, logits are those of a run from nothing."""
    for number, (which, length, own, owner, chunk, keep) in enumerate(moves):
        prompt = [*ids[which * 150 : which * 150 + length], *ids[number * 3 : number * 3 + own]]
        _, row = run(tight, prompt, owner=owner, chunk=chunk, keep=keep)
        np.testing.assert_array_equal(row, run(bare, prompt)[1])
        assert tight.kv_bytes <= 1 << 20


@pytest.fixture(scope="module")
def tight(load: Any) -> NativeRunner:
    """Memory for one and a half sequences."""
    runner: NativeRunner = load(kv_cache_mb=1, prefix_cache_mb=1)
    return runner
