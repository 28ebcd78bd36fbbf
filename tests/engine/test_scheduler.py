"""Which sequences a step computes, and in which order."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from maple.engine.api import Finish, Job, Piece, Sampling
from maple.engine.errors import GenerationFailed
from maple.engine.prefill import PrefillShares, Prompt
from maple.engine.report import Delivery, StepReport
from maple.engine.runner import PrefillLimits
from maple.engine.scheduler import Scheduler
from maple.engine.thinking import ThinkingLimits

EOS = 2
CLOSER = "</think>"
CASES = int(os.environ.get("STRESS_CASES", "60"))
Outcome = tuple[str, tuple[int, ...], str, int]


class Run:
    """Steps a scheduler and keeps what it delivers, by job."""

    def __init__(self, loaded: Any, limits: PrefillLimits | None = None, **options: Any) -> None:
        self.scheduler: Scheduler[int] = Scheduler(loaded, limits, **options)
        self.runner = loaded.runner
        self.items: dict[int, list[Piece | Finish]] = {}
        self.errors: dict[int, Exception] = {}
        self.ended: list[int] = []
        self.cancelled: set[int] = set()
        self.reports: list[StepReport[int]] = []

    def add(self, key: int, job: Job) -> None:
        self.items[key] = []
        self.scheduler.add(key, job, cancelled=lambda: key in self.cancelled)

    def step(self) -> StepReport[int]:
        report = self.scheduler.step()
        self.reports.append(report)
        for delivery in report.deliveries:
            self._take(delivery)
        return report

    def finish(self) -> None:
        while not self.scheduler.idle:
            self.step()

    def outcome(self, key: int) -> Outcome:
        *pieces, finish = self.items[key]
        assert isinstance(finish, Finish)
        assert all(isinstance(piece, Piece) for piece in pieces)
        text = "".join(piece.text for piece in pieces)
        offsets = tuple(offset for piece in pieces for offset in piece.offsets)
        return text, offsets, finish.reason, finish.completion_tokens

    def _take(self, delivery: Delivery[int]) -> None:
        assert delivery.key not in self.ended
        self.items[delivery.key].extend(delivery.items)
        if delivery.error is not None:
            self.errors[delivery.key] = delivery.error
        if delivery.ended:
            self.ended.append(delivery.key)


@pytest.fixture
def run(load_toy: Any, toy_runner: Any) -> Callable[..., Run]:
    def start(runner: Any = None, **options: Any) -> Run:
        return Run(load_toy(runner or toy_runner()), **options)

    return start


def alone(loaded: Any, job: Job, limits: PrefillLimits) -> Outcome:
    run = Run(loaded, limits)
    run.add(0, job)
    run.finish()
    return run.outcome(0)


jobs = st.builds(
    Job,
    request_id=st.just("r"),
    prompt_ids=st.lists(st.integers(0, 511), min_size=1, max_size=40).map(tuple),
    max_tokens=st.integers(1, 12),
    sampling=st.builds(
        Sampling,
        temperature=st.sampled_from([0.0, 1.0]),
        top_k=st.sampled_from([0, 3]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        seed=st.integers(-5, 5),
    ),
    stop=st.lists(st.text("aeiou ", min_size=1, max_size=2), max_size=2).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(jobs, st.integers(0, 20), st.integers(0, 30)), min_size=1, max_size=6),
    st.sampled_from([PrefillLimits(chunk=8, budget=8), PrefillLimits(chunk=8, budget=20)]),
)
def test_neighbours_arrivals_and_cancellations_change_nobodys_output(
    load_toy: Any, toy_runner: Any, plan: list[tuple[Job, int, int]], limits: PrefillLimits
) -> None:
    """Whoever joins or leaves when, each sequence ends once, as it ends alone, and all caches are closed."""
    run = Run(load_toy(toy_runner()), limits)
    for now in range(31):
        for key, (job, arrival, leave) in enumerate(plan):
            if now == arrival:
                run.add(key, job)
            if now == leave and leave >= 15:  # about half of them stay
                run.cancelled.add(key)
        run.step()
    run.finish()
    assert sorted(run.ended) == list(range(len(plan)))
    assert run.runner.kv_bytes == 0
    for key, (job, _, _) in enumerate(plan):
        if key not in run.cancelled:
            assert run.outcome(key) == alone(load_toy(toy_runner()), job, limits)


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(4, 16), st.integers(1, 40))
def test_prompts_run_in_fixed_chunks_within_the_budget(
    load_toy: Any, toy_runner: Any, lengths: list[int], chunk: int, budget: int
) -> None:
    """Chunks end at multiples of the chunk or at the prompt's end; a step keeps to its budget."""
    run = Run(load_toy(toy_runner()), PrefillLimits(chunk=chunk, budget=budget))
    for key, length in enumerate(lengths):
        run.add(key, Job(request_id="r", prompt_ids=(7,) * length, max_tokens=1, sampling=Sampling(seed=0)))
    run.finish()
    for slices in run.runner.steps:
        assert sum(size for _, size in slices) <= max(budget, chunk)
        assert all((start + size) % chunk == 0 or start + size in lengths for start, size in slices)
    assert sum(size for _, size in itertools.chain(*run.runner.steps)) == sum(lengths)


def test_short_prompts_pass_long_ones_which_keep_a_third(run: Any, make_job: Any) -> None:
    """Two steps in three are the short prompts', however many come; a long one is never starved."""
    running = run(limits=PrefillLimits(chunk=4, budget=4))
    running.add(0, make_job([9] * 40, max_tokens=1))
    running.step()
    for key in range(1, 7):
        running.add(key, make_job([key] * 6, max_tokens=1))
    running.finish()
    assert running.ended == [1, 2, 3, 4, 5, 6, 0]
    starts = [[(0, 4)], [(0, 4)], [(4, 2)], [(4, 4)], [(0, 4)], [(4, 2)], [(8, 4)]]
    assert running.runner.steps[: len(starts)] == starts


def test_equal_prompts_are_run_first_in_first_out(run: Any, make_job: Any) -> None:
    """Prompts of one length are answered in the order in which they came."""
    running = run(limits=PrefillLimits(chunk=4, budget=16))
    for key in range(9):
        running.add(key, make_job([key] * 200, max_tokens=1))
    running.finish()
    assert running.ended == list(range(9))


@settings(deadline=None, max_examples=CASES)
@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 30)), min_size=2, max_size=8),
    st.sampled_from([PrefillLimits(chunk=4, budget=32), PrefillLimits(chunk=8, budget=8)]),
)
def test_the_longest_prompt_is_never_below_a_third(
    arrivals: list[tuple[int, int]], limits: PrefillLimits
) -> None:
    """Whatever arrives when: for as long as a prompt is the longest it gets a third, but for a chunk's rounding, and
    no step leaves budget while there is something to compute.
    """
    shares, waiting, longest, steps, given_ = PrefillShares(limits), dict[int, Prompt](), -1, 0, 0
    for now in itertools.count():
        waiting |= {key: Prompt(0, size) for key, (size, arrival) in enumerate(arrivals) if arrival == now}
        if now > 30 and not waiting:
            break
        before, longest = (
            longest,
            max(waiting, key=lambda key: waiting[key].left // limits.budget, default=-1),
        )
        sizes = dict(zip(waiting, shares.of(list(waiting.values())), strict=True))
        left = sum(one.left for one in waiting.values())
        assert min(limits.budget, left) - limits.chunk < sum(sizes.values()) + (not left) <= limits.budget + 1
        steps, given_ = (
            (0, 0) if longest != before or len(waiting) < 2 else (steps + 1, given_ + sizes[longest])
        )
        waiting = {key: Prompt(one.start + sizes[key], one.left - sizes[key]) for key, one in waiting.items()}
        assert all(one.start % limits.chunk == 0 or not one.left for one in waiting.values())
        if longest in waiting and waiting[longest].left:
            assert given_ > steps * limits.budget / 3 - limits.chunk
        waiting = {key: one for key, one in waiting.items() if one.left}


def test_everybody_decodes_while_a_prompt_joins(run: Any, make_job: Any) -> None:
    """A long prompt never keeps running sequences from their next id in any step."""
    running = run(limits=PrefillLimits(chunk=4, budget=4))
    running.add(0, make_job(max_tokens=30))
    running.add(1, make_job((9,), max_tokens=30))
    for _ in range(3):
        running.step()
    running.add(2, make_job(range(40), max_tokens=1))
    before = len(running.runner.steps)
    for _ in range(10):
        running.step()
    for slices in running.runner.steps[before:]:
        assert sorted(size for _, size in slices) == [1, 1, 4]


def test_a_waiter_that_left_is_never_run(run: Any, make_job: Any) -> None:
    """A sequence cancelled before its first step ends without a slice, a cache or an item."""
    running = run()
    running.add(0, make_job())
    running.cancelled.add(0)
    running.step()
    assert (running.ended, running.items[0], running.runner.steps) == ([0], [], [])


@pytest.mark.parametrize("steps", [1, 6])
def test_cancelling_frees_within_a_step(run: Any, make_job: Any, steps: int) -> None:
    """In prefill and in decode alike, the step after a cancel ends the sequence and frees its cache."""
    running = run(limits=PrefillLimits(chunk=4, budget=4))
    running.add(0, make_job(range(10), max_tokens=100))
    for _ in range(steps):
        running.step()
    taken = len(running.items[0])
    running.cancelled.add(0)
    report = running.step()
    assert (running.ended, report.kv_bytes, len(running.runner.steps)) == ([0], 0, steps)
    assert len(running.items[0]) == taken
    assert running.scheduler.idle


def test_a_cancel_during_the_step_is_seen_at_its_end(run: Any, make_job: Any, toy_runner: Any) -> None:
    """What was cancelled while the model ran is released with that step's report."""
    held: list[Run] = []

    class CancelsMidway(toy_runner):  # type: ignore[misc]
        def step(self, slices: Sequence[Any]) -> Any:
            held[0].cancelled.add(0)
            return super().step(slices)

    running = run(CancelsMidway())
    held.append(running)
    running.add(0, make_job())
    assert [delivery.ended for delivery in running.step().deliveries][-1]
    assert running.ended == [0]


def test_the_end_token_counts_but_has_no_text(run: Any, make_job: Any, dictated_runner: Any) -> None:
    """EOS is in the completion count, and in neither the text nor the offsets."""
    running = run(dictated_runner(100, 101, EOS))
    running.add(0, make_job((7,)))
    running.finish()
    text, offsets, reason, tokens = running.outcome(0)
    assert (len(offsets), reason, tokens) == (2, "stop", 3)
    assert "<|im_end|>" not in text


def test_other_special_ids_are_text(run: Any, make_job: Any, dictated_runner: Any) -> None:
    """A special id that does not end the text is spelled out in it."""
    running = run(dictated_runner(1, 4, EOS))
    running.add(0, make_job((7,)))
    running.finish()
    assert running.outcome(0)[0] == "<|im_start|></think>"


def test_the_limit_ends_as_length(run: Any, make_job: Any) -> None:
    """After max_tokens ids nothing more is run, and the last id needs no step of its own."""
    running = run()
    running.add(0, make_job(max_tokens=5))
    running.finish()
    assert running.outcome(0)[2:] == ("length", 5)
    assert len(running.runner.steps) == 5


def test_stop_strings_cut_across_ids(
    run: Any, make_job: Any, dictated_runner: Any, golden_tokenizer: tokenizers.Tokenizer
) -> None:
    """A stop string made of several ids cuts before its first character, and every sampled id counts."""
    ids = golden_tokenizer.encode("one two three", add_special_tokens=False).ids
    text = golden_tokenizer.decode(ids)
    running = run(dictated_runner(*ids, EOS))
    running.add(0, make_job((7,), stop=("e two th",), max_tokens=100))
    running.finish()
    sent, offsets, reason, tokens = running.outcome(0)
    assert (sent, reason) == (text[: text.index("e two th")], "stop")
    assert len(offsets) == tokens <= len(ids)


def test_a_stop_id_ends_counts_and_is_not_shown(run: Any, make_job: Any, dictated_runner: Any) -> None:
    """As EOS does."""
    running = run(dictated_runner(40, 41, 42))
    running.add(0, make_job((7,), max_tokens=10, sampling=Sampling(temperature=0, stop_ids=(42,))))
    running.finish()
    _, offsets, reason, tokens = running.outcome(0)
    assert (len(offsets), reason, tokens) == (2, "stop", 3)


def test_nothing_ends_before_min_tokens(
    run: Any, make_job: Any, dictated_runner: Any, golden_tokenizer: tokenizers.Tokenizer
) -> None:
    """Neither EOS, which is not sampled, nor a stop string, which is text until then."""
    word = golden_tokenizer.encode("ab", add_special_tokens=False).ids
    text = golden_tokenizer.decode(word)
    running = run(dictated_runner(*word, *word, *word, EOS))
    sampling = Sampling(temperature=0, min_tokens=2 * len(word))
    running.add(0, make_job((7,), max_tokens=50, stop=(text,), sampling=sampling))
    running.finish()
    sent, _, reason, tokens = running.outcome(0)
    assert (sent, reason, tokens) == (2 * text, "stop", 3 * len(word))


def test_text_held_for_a_stop_string_is_sent_at_the_limit(
    run: Any, make_job: Any, dictated_runner: Any, golden_tokenizer: tokenizers.Tokenizer
) -> None:
    """A prefix of a stop string that the limit cuts short is text like any other."""
    ids = golden_tokenizer.encode("abc", add_special_tokens=False).ids
    running = run(dictated_runner(*ids))
    running.add(0, make_job((7,), stop=("abcdef",), max_tokens=len(ids)))
    running.finish()
    assert running.outcome(0) == ("abc", tuple(range(len(ids))), "length", len(ids))


def test_half_a_character_at_the_end_becomes_one_replacement(
    run: Any, make_job: Any, dictated_runner: Any, golden_tokenizer: tokenizers.Tokenizer
) -> None:
    """A limit inside a character of several ids leaves U+FFFD, and both of its ids are placed."""
    ids = golden_tokenizer.encode("🍁", add_special_tokens=False).ids
    assert len(ids) > 2
    running = run(dictated_runner(*ids))
    running.add(0, make_job((7,), max_tokens=2))
    running.finish()
    assert running.outcome(0) == ("\ufffd", (0, 0), "length", 2)


def test_time_out_ends_as_length(run: Any, make_job: Any) -> None:
    """A job past its timeout ends with what it has, in decode and in prefill, and the others go on."""
    now = [0.0]
    running = run(limits=PrefillLimits(chunk=4, budget=4), clock=lambda: now[0])
    running.add(0, make_job(max_tokens=100, timeout=10))
    running.add(1, make_job(range(100), max_tokens=1, timeout=10))
    running.add(2, make_job((9,), max_tokens=100))
    for _ in range(5):
        running.step()
    now[0] = 10
    running.step()
    assert running.outcome(0)[2:] == ("length", 5)
    assert running.outcome(1) == ("", (), "length", 0)
    assert running.ended == [0, 1]


def test_finish_tells_the_times(run: Any, make_job: Any) -> None:
    """Queue, prefill and decode seconds add up to the time the job took."""
    ticks = itertools.count()
    running = run(clock=lambda: float(next(ticks)))
    running.scheduler.add(0, make_job(), cancelled=lambda: False, queue_seconds=3.5)
    running.items[0] = []
    running.finish()
    finish = running.items[0][-1]
    assert 3.5 < finish.queue_seconds < 3.5 + next(ticks)
    assert finish.prefill_seconds > 0
    assert finish.decode_seconds > finish.prefill_seconds


class Breaks:
    """Makes a toy runner raise in chosen steps: a device at the runner's boundary for testing failures."""

    def __init__(self, base: Any, *steps: int) -> None:
        self.steps = steps
        self.base = base

    def build(self) -> Any:
        broken = self.steps

        class BreakingRunner(self.base):  # type: ignore[misc, name-defined]
            calls = 0

            def step(self, slices: Sequence[Any]) -> Any:
                self.calls += 1
                if self.calls - 1 in broken:
                    raise RuntimeError("out of order")
                return super().step(slices)

        return BreakingRunner()


def test_a_broken_step_ends_its_sequences_and_no_others(run: Any, make_job: Any, toy_runner: Any) -> None:
    """Sequences of the failed step raise GenerationFailed; one that was not in it ends as it would alone."""
    running = run(Breaks(toy_runner, 0).build(), limits=PrefillLimits(chunk=4, budget=4))
    running.add(0, make_job(range(4)))
    running.add(1, make_job(range(4, 8)))
    report = running.step()
    assert isinstance(running.errors[0], GenerationFailed)
    assert (running.ended, report.broken, report.kv_bytes) == ([0], False, 0)
    running.finish()
    assert running.outcome(1)[3] == 8


def test_two_broken_steps_in_a_row_are_reported(run: Any, make_job: Any, toy_runner: Any) -> None:
    """A second consecutive failure says the model is broken; a good step in between forgives the first."""
    running = run(Breaks(toy_runner, 0, 2, 3).build())
    for key in range(3):
        running.add(key, make_job(max_tokens=1))
        running.step()
    assert not any(report.broken for report in running.reports)
    running.add(3, make_job())
    assert running.step().broken


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_cannot_be_sampled_end_that_sequence_alone(
    run: Any, make_job: Any, toy_runner: Any, bad: float
) -> None:
    """NaN or infinite logits are one sequence's failure, however often: its neighbour goes on."""

    class SometimesBad(toy_runner):  # type: ignore[misc]
        def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
            row: npt.NDArray[np.float32] = super().logits(ids)
            return np.full_like(row, bad) if ids[0] == 99 else row

    running = run(SometimesBad())
    running.add(0, make_job())
    for key in range(1, 4):
        running.add(key, make_job((99,)))
        assert not running.step().broken
        assert isinstance(running.errors[key], GenerationFailed)
    running.finish()
    assert running.outcome(0)[3] == 8


def test_a_reused_prefix_is_not_run_again(run: Any, make_job: Any, toy_runner: Any, load_toy: Any) -> None:
    """What the runner still has of a prompt is skipped and reported, and the output stays the same."""
    prompt = tuple(range(10, 30))
    running = run(toy_runner(prefix=prompt[:6]), limits=PrefillLimits(chunk=8, budget=8))
    running.add(0, make_job(prompt))
    running.finish()
    assert running.runner.steps[:3] == [[(6, 2)], [(8, 8)], [(16, 4)]]
    finish = running.items[0][-1]
    assert isinstance(finish, Finish)
    assert finish.cached_tokens == 6
    assert sum(report.cached_tokens for report in running.reports) == 6
    assert running.outcome(0) == alone(load_toy(toy_runner()), make_job(prompt), PrefillLimits())


def test_tokens_are_counted_as_they_are_made(run: Any, make_job: Any) -> None:
    """Reports add up to the prompts that were run and the ids that were sampled."""
    running = run()
    running.add(0, make_job(range(7), max_tokens=3))
    running.add(1, make_job(range(5), max_tokens=4))
    running.finish()
    assert sum(report.prompt_tokens for report in running.reports) == 12
    assert sum(report.generation_tokens for report in running.reports) == 7
    assert running.reports[-1].kv_bytes == 0
    assert max(report.kv_bytes for report in running.reports) > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_forced_ids_count_like_any_other(
    run: Any, make_job: Any, endless_runner: Any, golden_tokenizer: tokenizers.Tokenizer, seed: int
) -> None:
    """Text, offsets and the count of ids hold them, alone as beside others."""
    closing, line = (
        tuple(golden_tokenizer.encode(text, add_special_tokens=False).ids) for text in (f"{CLOSER}\n\n", "\n")
    )
    bounded = make_job(
        max_tokens=40,
        sampling=Sampling(temperature=1, seed=seed),
        thinking=ThinkingLimits(closer=CLOSER, closing=closing, closing_line=(*line, *closing), budget=12),
    )
    alone, beside = run(endless_runner()), run(endless_runner())
    alone.add(0, bounded)
    alone.finish()
    for key, job in enumerate((bounded, make_job((9, 9, 9), max_tokens=40))):
        beside.add(key, job)
    beside.finish()
    text, offsets, reason, tokens = alone.outcome(0)
    assert beside.outcome(0) == alone.outcome(0)
    assert f"{CLOSER}\n\n" in text
    assert (len(offsets), reason, tokens) == (40, "length", 40)
