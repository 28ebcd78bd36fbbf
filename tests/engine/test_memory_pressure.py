"""Too little memory for all: who waits, who is put back, and that it changes no answer."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maple
from maple.engine.api import Finish, Job, Piece, Sampling
from maple.engine.errors import ModelFailed
from maple.engine.kv.cache import CacheHandle, Wait
from maple.engine.memory import kv_budget
from maple.engine.runner import PrefillLimits
from maple.engine.scheduler import Scheduler
from maple.native.library import Unavailable, available
from maple.native.loader import KernelOptions, native_loader
from maple.native.weights import NativeSource

CASES = int(os.environ.get("STRESS_CASES", "60"))
LIMITS = PrefillLimits(chunk=4, budget=16)


@pytest.fixture(scope="session")
def tight_runner(toy_runner: Any) -> Any:
    """A toy runner with memory for so many tokens; it counts how often a prompt was looked up."""

    class TightRunner(toy_runner):  # type: ignore[misc]
        def __init__(self, tokens: int) -> None:
            super().__init__()
            self.tokens = tokens
            self.lookups = 0
            self.reserved: dict[Any, int] = {}

        def open(
            self, owner: str, prompt_ids: Sequence[int], longest: int = 0, *, reuse: bool = True
        ) -> CacheHandle[Any] | Wait:
            assert longest <= self.tokens
            self.lookups += 1
            if self.reserved and sum(self.reserved.values()) + len(prompt_ids) + 1 > self.tokens:
                return Wait.MEMORY
            handle: CacheHandle[Any] = super().open(owner, prompt_ids, longest)
            self.reserved[handle] = len(prompt_ids)
            return handle

        def reserve(self, cache: CacheHandle[Any], length: int) -> bool:
            others = sum(self.reserved.values()) - self.reserved[cache]
            if others + max(self.reserved[cache], length) > self.tokens:
                return False
            self.reserved[cache] = max(self.reserved[cache], length)
            return True

        def close(self, cache: CacheHandle[Any], **options: Any) -> None:
            del self.reserved[cache]
            super().close(cache, **options)

    return TightRunner


class Play:
    """A scheduler, and the text that each job got."""

    def __init__(self, loaded: Any) -> None:
        self.scheduler: Scheduler[int] = Scheduler(loaded, LIMITS)
        self.texts: dict[int, str] = {}
        self.finishes: dict[int, Finish] = {}
        self.opened: list[int] = []
        self.parked: list[int] = []

    def add(self, key: int, job: Job) -> None:
        self.texts[key] = ""
        self.scheduler.add(key, job, cancelled=lambda: False)

    def step(self) -> None:
        report = self.scheduler.step()
        self.opened += report.opened
        self.parked += report.parked
        for delivery in report.deliveries:
            assert delivery.error is None
            for item in delivery.items:
                if isinstance(item, Piece):
                    self.texts[delivery.key] += item.text
                else:
                    self.finishes[delivery.key] = item

    def finish(self) -> None:
        while not self.scheduler.idle:
            self.step()


def job(prompt: Sequence[int], tokens: int, owner: str = "", **changes: Any) -> Job:
    return Job(
        request_id="r",
        prompt_ids=tuple(prompt),
        max_tokens=tokens,
        sampling=Sampling(temperature=1, seed=len(prompt)),
        owner=owner,
        **changes,
    )


jobs = st.builds(
    job,
    st.lists(st.integers(3, 511), min_size=1, max_size=40),
    st.integers(1, 20),
    st.sampled_from(["a", "b", "c"]),
)


@settings(max_examples=CASES, deadline=None)
@given(st.lists(st.tuples(jobs, st.integers(0, 20)), min_size=2, max_size=8), st.integers(60, 120))
def test_being_put_back_changes_no_answer(
    load_toy: Any, toy_runner: Any, tight_runner: Any, plan: list[tuple[Job, int]], tokens: int
) -> None:
    """With memory for one or two, each text is the one that it is with memory for all; everyone ends."""
    play, roomy = Play(load_toy(tight_runner(tokens))), Play(load_toy(toy_runner()))
    for now in range(21):
        for key, (one, arrival) in enumerate(plan):
            if arrival == now:
                play.add(key, one)
                roomy.add(key, one)
        play.step()
    play.finish()
    roomy.finish()
    assert play.texts == roomy.texts
    for key, finish in play.finishes.items():
        assert finish.completion_tokens == roomy.finishes[key].completion_tokens
        assert finish.prompt_tokens == roomy.finishes[key].prompt_tokens


def test_memory_is_not_taken_for_what_may_never_come(load_toy: Any, tight_runner: Any) -> None:
    """Sequences that may grow long run together as long as what they have grown to fits."""
    play = Play(load_toy(tight_runner(100)))
    for key in range(4):
        play.add(key, job([9, key], 90))
    play.step()
    assert play.opened == [0, 1, 2, 3]


def test_a_waiting_prompt_is_not_looked_up_in_every_step(load_toy: Any, tight_runner: Any) -> None:
    """While nothing is given back there is nothing new to find."""
    runner = tight_runner(100)
    play = Play(load_toy(runner))
    play.add(0, job([9] * 10, 60))
    play.add(1, job([8] * 95, 1))
    play.step()
    before = runner.lookups
    for _ in range(12):
        play.step()
    assert runner.lookups - before <= 1
    assert play.parked == [1]


def test_another_keys_prompt_passes_one_that_waits_for_memory(load_toy: Any, tight_runner: Any) -> None:
    """A key's own jobs wait their turn; other keys' pass a few times, and then wait as well."""
    play = Play(load_toy(tight_runner(100)))
    play.add(0, job([9] * 10, 60, "a"))
    play.add(1, job([8] * 95, 1, "a"))
    play.add(2, job([7] * 5, 1, "a"))
    for key in range(3, 15):
        play.add(key, job([7, key], 1, "b"))
    for _ in range(6):
        play.step()
    assert play.opened == [0, *range(3, 11)]
    assert play.parked == [1, 2, *range(11, 15)]
    play.finish()
    assert len(play.finishes) == 15


def test_a_cache_smaller_than_one_window_is_refused_by_name() -> None:
    """At start, with the setting and what it takes, instead of failing every other request."""
    if isinstance(available(), Unavailable):
        pytest.skip("the kernels are not built here")
    source = NativeSource(source=str(pathlib.Path(maple.__file__).parent / "demo"))
    with pytest.raises(
        ModelFailed, match=r"MAPLE_KV_CACHE_MB.* one window has 256: [0-9]+ at least"
    ) as caught:
        native_loader(source, KernelOptions(threads=1, kv_cache_mb=1, kv_dtype="f32"))(lambda: False)
    least = int(caught.value.reason.split()[-3])
    loaded = native_loader(source, KernelOptions(threads=1, kv_cache_mb=least, kv_dtype="f32"))(lambda: False)
    assert loaded.served.max_model_len >= 256


def test_mapped_weights_are_not_room_for_keys_and_values() -> None:
    """Their pages count as free for the system, but every step reads them."""
    assert kv_budget(None, 1000, mapped=500) == kv_budget(None, 500)
    assert kv_budget(None, 1000, mapped=2000) == 0
    assert kv_budget(1, 1 << 20, mapped=1 << 20) == 1 << 20
