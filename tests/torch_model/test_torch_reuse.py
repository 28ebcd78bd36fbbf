"""Reuse on the torch model: within golden bounds, cut anywhere, kept within its limits."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="this is the runner that needs torch")

from maple_testing.engine import never

from maple.engine.kv.cache import CacheLimits, KvSnapshot, SnapshotUnfit, Wait
from maple.engine.runner import SequenceSlice
from maple.torch_model.loader import torch_loader

MIB = 1 << 20


@pytest.fixture(scope="module")
def load(golden_folder: pathlib.Path) -> Callable[..., Any]:
    """A golden model's runner with its own cache."""

    def options() -> Any:
        from maple.torch_model.load import LoadOptions

        return LoadOptions(source=str(golden_folder / "bf16-stacked"), device="cpu", dtype="float32")

    def run(prefix_bytes: int = 32 * MIB, *, kv_cache_mb: int = 64, shared: bool = False) -> Any:
        limits = CacheLimits(prefix_bytes=prefix_bytes, shared=shared)
        return torch_loader(options, threads=1, kv_cache_mb=kv_cache_mb, limits=limits)(never).runner

    return run


@pytest.fixture(scope="module")
def ids(golden_folder: pathlib.Path) -> list[int]:
    prompts = json.loads((golden_folder / "prompts.json").read_text())["prompts"]
    return [int(token) for token in (prompts[2] * 20)[:500]]


def run(runner: Any, ids: Sequence[int], owner: str = "") -> tuple[int, npt.NDArray[np.float32]]:
    cache = runner.open(owner, ids)
    assert not isinstance(cache, Wait)
    part = ids[cache.reused :]
    (row,) = runner.step(
        [SequenceSlice(cache=cache, ids=part, start=cache.reused, want_logits=True, cancelled=never)]
    )
    runner.close(cache)
    return cache.reused, row


@pytest.mark.parametrize("cut", [1, 63, 64, 100, 299, 300])
def test_any_cut_is_found_and_gives_the_same_logits(load: Any, ids: list[int], cut: int) -> None:
    """Also far behind the sliding window."""
    runner = load()
    run(runner, ids[:300])
    prompt = [*ids[:cut], 3 if ids[cut] != 3 else 4, *ids[400:450]]
    reused, row = run(runner, prompt)
    assert reused == cut
    np.testing.assert_allclose(row, run(load(0), prompt)[1], atol=1e-4)


def test_limits_and_owners(load: Any, ids: list[int]) -> None:
    """Other owners find nothing, and what is kept stays within its limit."""
    runner = load(8 * MIB)
    run(runner, ids[:200], "one")
    assert run(runner, ids[:200], "two")[0] == 0
    assert run(runner, ids[:200], "one")[0] == 199
    for turn in range(20):
        run(runner, [turn, *ids])
        assert runner.kv_bytes <= 8 * MIB
    assert runner.evictions > 0
    assert run(load(shared=True), ids[:10])[0] == 0


def test_memory_is_waited_for(load: Any, ids: list[int]) -> None:
    """A sequence that does not fit beside another waits, and fits once that has ended."""
    runner = load(0, kv_cache_mb=1)
    longest = runner.longest
    first = runner.open("one", ids[:10], longest - 64)
    assert runner.open("two", ids[:10], 128) is Wait.MEMORY
    runner.close(first)
    assert not isinstance(runner.open("two", ids[:10], 128), Wait)


def test_the_same_prompt_is_computed_once(load: Any, ids: list[int]) -> None:
    """While one computes it, another waits."""
    runner = load()
    first = runner.open("", ids)
    assert runner.open("", ids) is Wait.PREFIX
    assert not isinstance(runner.open("other", ids), Wait)
    runner.close(first)


def test_a_snapshot_goes_on_alike(load: Any, ids: list[int]) -> None:
    """Copied out of one store and into another; one with arrays missing is refused."""
    runner, other = load(), load()
    run(runner, ids[:300])
    snapshot = runner.snapshot("", ids[:300])
    assert snapshot is not None
    assert other.restore("", snapshot) == 300
    prompt = [*ids[:300], *ids[400:420]]
    reused, row = run(other, prompt)
    assert reused == 300
    np.testing.assert_allclose(row, run(load(0), prompt)[1], atol=1e-4)
    arrays = {name: array for name, array in snapshot.arrays.items() if name != "keys.1"}
    with pytest.raises(SnapshotUnfit):
        other.restore("", KvSnapshot(ids=ids[:300], kv_format=other.kv_format, arrays=arrays))
