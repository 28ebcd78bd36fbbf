"""Several choices of one prompt: what they compute, hold, and leave behind."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from maple_testing.engine import greedy_job, never

from maple.choices import sibling
from maple.engine.api import Finish, Piece, Sampling
from maple.engine.report import StepReport
from maple.engine.runner import LoadedEngine
from maple.engine.scheduler import Scheduler
from maple.native.library import Unavailable, available
from maple.native.loader import KernelOptions, native_loader
from maple.native.runner import NativeRunner
from maple.native.weights import NativeSource

pytestmark = pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="the kernels are not built here: torch serves alone"
)

PROMPT = [5 + one % 200 for one in range(5 * 64 + 10)]
SHORT = PROMPT[:20]


@pytest.fixture
def loaded(golden_folder: pathlib.Path) -> Iterator[LoadedEngine]:
    """Nothing is kept once it has ended, so that what is held is what runs."""
    options = KernelOptions(threads=2, slots=8, kv_cache_mb=64, prefix_cache_mb=0)
    made = native_loader(NativeSource(source=str(golden_folder / "mlx-2bit")), options)(never)
    yield made
    assert isinstance(made.runner, NativeRunner)
    made.runner.shut()


class Run:
    """Choices of one prompt in a scheduler; ``cancelled`` ends them all."""

    def __init__(self, loaded: LoadedEngine, prompt: list[int], count: int) -> None:
        self.scheduler: Scheduler[int] = Scheduler(loaded)
        self.cancelled = False
        self.texts: dict[int, str] = dict.fromkeys(range(count), "")
        self.finished: set[int] = set()
        self.computed = 0
        job = greedy_job(prompt, max_tokens=30, sampling=Sampling(temperature=1, seed=9, ignore_eos=True))
        for choice in range(count):
            self.scheduler.add(
                choice, sibling(job, choice, first=choice == 0), cancelled=lambda: self.cancelled
            )

    def step(self) -> StepReport[int]:
        report = self.scheduler.step()
        self.computed += report.prompt_tokens - report.cached_tokens
        for delivery in report.deliveries:
            for item in delivery.items:
                if isinstance(item, Piece):
                    self.texts[delivery.key] += item.text
                elif isinstance(item, Finish):
                    self.finished.add(delivery.key)
        return report

    def decoding(self) -> StepReport[int]:
        """Step until each has its first token."""
        while (report := self.step()).prefills or not report.kv_blocks:
            pass
        return report


@pytest.mark.parametrize("prompt", [PROMPT, SHORT], ids=["blocks", "less-than-a-block"])
def test_four_choices_are_one_prompt_and_four_tails(loaded: LoadedEngine, prompt: list[int]) -> None:
    """One prefill, of which each further choice computes the last id; the memory of one, and a block of either kind of
    layers for each tail beyond the first.
    """
    alone = Run(loaded, prompt, 1)
    one = alone.decoding()
    while not alone.scheduler.idle:
        alone.step()
    four = Run(loaded, prompt, 4)
    report = four.decoding()
    assert four.computed == len(prompt) + 3
    assert report.kv_blocks == one.kv_blocks + 3 * 2
    while not four.scheduler.idle:
        last = four.step()
    assert last.kv_blocks == 0
    assert four.texts[0] == alone.texts[0]
    assert len(set(four.texts.values())) == 4


def test_cancelling_frees_all_of_them(loaded: LoadedEngine) -> None:
    """Those that decode, and those that still wait for the prompt."""
    for steps in (1, 6):
        run = Run(loaded, PROMPT, 4)
        for _ in range(steps):
            report = run.step()
        assert report.kv_blocks
        run.cancelled = True
        assert run.step().kv_blocks == 0
        assert run.scheduler.idle
