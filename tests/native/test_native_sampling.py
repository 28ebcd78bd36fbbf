"""Sampling in the kernels: the ids of numpy's for the same seed, quickly, for any legal values."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import attrs
import numpy as np
import pytest

import maple
from maple.engine.allowed import Allowed
from maple.engine.api import Sampling
from maple.engine.sampling import Sampler, SampleRow, choose_ids
from maple.native.library import Unavailable, available
from maple.native.loader import KernelOptions, native_loader
from maple.native.sampling import NativeSampling
from maple.native.weights import NativeSource

pytestmark = pytest.mark.skipif(isinstance(available(), Unavailable), reason="the kernels are not built here")

CASES = int(os.environ.get("STRESS_CASES", "150"))


@pytest.fixture(scope="module")
def choose() -> Iterator[NativeSampling]:
    source = NativeSource(source=str(pathlib.Path(maple.__file__).parent / "demo"))
    loaded = native_loader(source, KernelOptions(threads=2, kv_cache_mb=16))(lambda: False)
    assert isinstance(loaded.choose, NativeSampling)
    yield loaded.choose
    loaded.runner.shut()  # type: ignore[attr-defined] # it is a NativeRunner


def some_row(seed: int) -> SampleRow:
    """A row by chance: its size, its logits' shape with ties and holes, and every value that a request may have."""
    chance = np.random.default_rng(seed)
    size = int(chance.choice([1, 2, 63, 64, 65, 700, 5000, 20_000]))
    logits = chance.standard_normal(size).astype(np.float32) * np.float32(chance.choice([0.01, 3, 30]))
    if chance.random() < 0.3:
        logits = np.round(logits)
    if chance.random() < 0.2:
        logits[chance.integers(size, size=size // 2)] = -np.inf
    if chance.random() < 0.1:
        logits[chance.integers(size)] = chance.choice([np.nan, np.inf, -np.inf, 3e38, -3e38])
    ids = lambda: sorted({int(one) for one in chance.integers(size, size=20)})  # noqa: E731 -- drawn anew each time
    counted, biased = ids(), ids()
    mask = None
    if chance.random() < 0.3:
        mask = Allowed.from_ids(np.unique(chance.integers(size, size=size))).mask
        mask = None if mask is None else np.pad(mask, (0, -(-size // 32) - len(mask)))
    return SampleRow(
        logits=logits,
        sampling=Sampling(
            temperature=float(chance.choice([0, 1e-300, 0.05, 0.6, 1, 2])),
            top_k=int(chance.choice([0, 0, 1, 20, 300, 5000])),
            top_p=float(chance.choice([1e-300, 0.1, 0.9, 0.95, 0.999999, 1])),
            repetition_penalty=float(chance.choice([1, 0.5, 1.3, 1e300])),
            presence=float(chance.uniform(-2, 2)),
            frequency=float(chance.uniform(-2, 2)),
            min_p=float(chance.choice([0, 0, 0.05, 1])),
        ),
        limit=size,
        fraction=float(chance.choice([0, chance.random(), 1 - 2**-53])),
        seen=ids(),
        counted=counted,
        counts=[int(one) for one in chance.integers(1, 9, size=len(counted))],
        biased=biased,
        bias=[float(one) for one in chance.choice([-100, -3.5, 7, 100], size=len(biased))],
        mask=mask,
    )


@pytest.mark.parametrize("seed", range(CASES))
def test_the_kernels_choose_what_numpy_chooses(choose: NativeSampling, seed: int) -> None:
    """Any row, any values: the same id, alone and beside others."""
    row = some_row(seed)
    others = [attrs.evolve(row, fraction=fraction) for fraction in (0.1, 0.5, 0.9)]
    expected = choose_ids([row, *others])
    assert choose([row, *others]) == expected
    assert choose([row]) == expected[:1]


@pytest.mark.parametrize("top_p", [0.3, 0.95, 1.0])
@pytest.mark.parametrize("top_k", [0, 3, 50_000])
def test_draws_of_a_large_vocabulary_agree(choose: NativeSampling, top_k: int, top_p: float) -> None:
    """151,669 ids, the same seed: twenty ids in a row, penalised as they come."""
    logits = (np.random.default_rng(1).standard_normal(151_936) * 3).astype(np.float32)
    allowed = Allowed.from_ids(np.delete(np.arange(151_669), [5, 77]))
    sampling = Sampling(temperature=1.5, top_k=top_k, top_p=top_p, repetition_penalty=1.2, seed=9)
    one, two = Sampler(sampling, allowed, [1, 2, 3]), Sampler(sampling, allowed, [1, 2, 3])
    for _ in range(20):
        assert two.take(choose([two.row(logits)])[0]) == one.choose(logits)


def test_no_rows_are_no_work(choose: NativeSampling) -> None:
    """A step of prefill alone wants no id."""
    assert choose([]) == []
