"""How the next id is drawn from logits."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maple.engine.allowed import Allowed
from maple.engine.api import Sampling
from maple.engine.sampling import BadLogitsError, Sampler, choose_ids

VOCABULARY = 151_669
ALL = Allowed.from_ids(np.arange(700))


def some_logits(seed: int, size: int = 700) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)


def probabilities(sampler: Sampler, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    ids, cumulative = sampler.distribution(logits)
    result = np.zeros(len(logits))
    result[ids] = np.diff(cumulative, prepend=0) / cumulative[-1]
    return result


def transformers_probabilities(
    sampling: Sampling, logits: npt.NDArray[np.float32], context: list[int]
) -> npt.NDArray[np.float64]:
    torch = pytest.importorskip("torch", reason="the rules are those of Transformers, which needs torch")
    from transformers.generation import logits_process as rules

    processors = [
        rules.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
        rules.TemperatureLogitsWarper(sampling.temperature),
    ]
    if sampling.top_k:
        processors.append(rules.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(rules.TopPLogitsWarper(sampling.top_p))
    scores = torch.tensor(logits, dtype=torch.float64)[None]
    for processor in processors:
        scores = processor(torch.tensor([context]), scores)
    result: npt.NDArray[np.float64] = scores.softmax(-1)[0].numpy()
    return result


@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.6])
def test_min_p_and_bias_are_those_of_transformers(min_p: float) -> None:
    """After the bias, and after temperature, top-k and top-p."""
    torch = pytest.importorskip("torch", reason="the rules are those of Transformers, which needs torch")
    from transformers.generation import logits_process as rules

    logits, bias = some_logits(5), ((3, 4.0), (77, -2.5), (12, 0.5))
    sampling = Sampling(temperature=0.8, top_p=0.9, top_k=50, min_p=min_p, bias=bias)
    scores = torch.tensor(logits, dtype=torch.float64)[None]
    processors = [
        rules.SequenceBiasLogitsProcessor({(token,): value for token, value in bias}),
        rules.TemperatureLogitsWarper(0.8),
        rules.TopKLogitsWarper(50),
        rules.TopPLogitsWarper(0.9),
        *([rules.MinPLogitsWarper(min_p)] if min_p else []),
    ]
    for processor in processors:
        scores = processor(torch.tensor([[1]]), scores)
    found = probabilities(Sampler(sampling, ALL), logits)
    np.testing.assert_allclose(found, scores.softmax(-1)[0].numpy(), atol=1e-6)


def test_presence_and_frequency_count_output_ids_alone() -> None:
    """An id that the output holds twice loses the presence once and the frequency twice; the prompt's lose nothing."""
    logits = np.zeros(700, np.float32)
    logits[[5, 6]] = 3.0, 2.0
    sampler = Sampler(Sampling(temperature=0, presence=0.5, frequency=0.4), ALL, prompt_ids=[5, 6])
    assert [sampler.choose(logits) for _ in range(4)] == [5, 5, 6, 5]


def test_a_bias_of_minus_a_hundred_bans() -> None:
    """However likely the id; any other bias is added."""
    logits = np.zeros(700, np.float32)
    logits[[5, 6]] = 1e6, 1.0
    assert (
        Sampler(Sampling(temperature=0, bias=((5, -100.0), (9, 2.0), (10_000, 5.0))), ALL).choose(logits) == 9
    )


@pytest.mark.parametrize("allowed", [ALL, Allowed.from_ids(np.array([*range(5, 90), 95]))])
def test_bans_yield_where_they_would_leave_nothing(allowed: Allowed) -> None:
    """A form that has to be kept is stronger, and so is the need for some id; other biases hold on."""
    logits = np.zeros(700, np.float32)
    logits[[5, 6, 7]] = 3.0, 2.0, 1.0
    bias = ((5, -100.0), (6, -100.0), (7, 1.5))
    held_to = allowed.without({*range(allowed.limit)} - {5, 6})
    sampler = Sampler(Sampling(temperature=0, bias=bias), allowed)
    assert choose_ids([sampler.row(logits, held_to)]) == [5]
    assert choose_ids([sampler.row(logits)]) == [7]
    everything = tuple((token, -100.0) for token in range(allowed.limit))
    assert Sampler(Sampling(temperature=0, bias=everything), allowed).choose(logits) == 5


@pytest.mark.parametrize("allowed", [ALL, Allowed.from_ids(np.array([*range(5, 90), 95]))])
def test_no_end_before_its_time(allowed: Allowed) -> None:
    """EOS and stop ids wait for min_tokens; ignore_eos lets stop ids end, and EOS never."""
    logits = np.zeros(700, np.float32)
    logits[[6, 8, 10]] = 3.0, 2.0, 1.0
    patient = Sampler(Sampling(temperature=0, min_tokens=2, stop_ids=(8,)), allowed, eos=(6,))
    assert [patient.choose(logits) for _ in range(3)] == [10, 10, 6]
    endless = Sampler(
        Sampling(temperature=0, min_tokens=1, stop_ids=(8,), ignore_eos=True), allowed, eos=(6,)
    )
    assert [endless.choose(logits) for _ in range(3)] == [10, 8, 8]


@pytest.mark.parametrize("temperature", [0.05, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 20, 300, 5000])
@pytest.mark.parametrize("top_p", [0.001, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("penalty", [1.0, 0.8, 1.3])
def test_probabilities_are_those_of_transformers(
    temperature: float, top_k: int, top_p: float, penalty: float
) -> None:
    """Penalty, temperature, top-k and top-p give each id the probability that Transformers gives it."""
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=penalty, seed=0)
    context = [3, 3, 500, 42]
    logits = some_logits(7)
    ours = probabilities(Sampler(sampling, ALL, context), logits)
    np.testing.assert_allclose(ours, transformers_probabilities(sampling, logits, context), atol=1e-9)


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=400),
    st.integers(0, 40),
    st.sampled_from([0.3, 0.9, 1.0]),
)
def test_ties_are_kept_or_cut_as_a_plain_sort_would(scores: list[int], top_k: int, top_p: float) -> None:
    """The quick search for the largest logits keeps exactly what sorting all of them would keep."""
    logits = np.array(scores, np.float32)
    sampler = Sampler(
        Sampling(top_k=top_k, top_p=top_p, temperature=1), Allowed.from_ids(np.arange(len(scores)))
    )
    order = np.argsort(-logits, kind="stable")
    if top_k:
        order = order[logits[order] >= logits[order][min(top_k, len(order)) - 1]]
    weights = np.exp(logits[order].astype(np.float64))
    if top_p < 1:
        order = order[: int(np.searchsorted(np.cumsum(weights), top_p * weights.sum() * (1 - 1e-12))) + 1]
    assert sorted(sampler.distribution(logits)[0]) == sorted(order)


def test_greedy_takes_the_first_of_the_best() -> None:
    """Temperature 0 takes the highest logit, the lower id of two equal ones, and needs no luck."""
    logits = np.array([0, 5, 5, 1], np.float32)
    sampler = Sampler(Sampling(temperature=0, seed=1), Allowed.from_ids(np.arange(4)))
    assert {sampler.choose(logits) for _ in range(20)} == {1}


def test_the_penalty_counts_prompt_and_output_ids() -> None:
    """An id of the prompt is penalised from the start, a chosen one from then on; negative logits sink."""
    sampling = Sampling(temperature=0, repetition_penalty=2.0)
    sampler = Sampler(sampling, Allowed.from_ids(np.arange(4)), prompt_ids=[0])
    logits = np.array([8, 5, 3, -1], np.float32)
    assert [sampler.choose(logits) for _ in range(4)] == [1, 0, 0, 0]
    negative = np.array([-1, -1.5, -9, -9], np.float32)
    assert sampler.choose(negative) == 0
    assert Sampler(sampling, Allowed.from_ids(np.arange(4)), [0]).choose(negative) == 1


def test_logits_are_left_as_they_are() -> None:
    """The caller's array is not written to."""
    logits = some_logits(1)
    before = logits.copy()
    Sampler(Sampling(repetition_penalty=1.5), Allowed.from_ids(np.arange(0, 700, 2)), [2]).choose(logits)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=2, top_k=0, top_p=1)])
def test_ids_without_a_token_are_never_chosen(sampling: Sampling) -> None:
    """Holes in the vocabulary and the padding behind it stay unsampled, whatever their logits."""
    logits = np.full(20, -5, np.float32)
    logits[[3, 15, 19]] = [90, 90, np.nan]
    allowed = Allowed.from_ids(np.array([0, 1, 2, 4, 5, 6]))
    sampler = Sampler(sampling, allowed)
    assert {sampler.choose(logits) for _ in range(200)} <= {0, 1, 2, 4, 5, 6}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0), Sampling(top_k=0)])
def test_bad_logits_are_an_error(bad: float, sampling: Sampling) -> None:
    """One NaN or +inf anywhere raises instead of choosing something."""
    logits = some_logits(3)
    logits[600] = bad
    with pytest.raises(BadLogitsError):
        Sampler(sampling, ALL).choose(logits)


def test_nothing_but_minus_infinity_is_an_error() -> None:
    """When every id is ruled out there is nothing to choose."""
    with pytest.raises(BadLogitsError):
        Sampler(Sampling(), ALL).choose(np.full(700, -np.inf, np.float32))


@given(
    st.floats(1e-300, 2),
    st.floats(1e-300, 1, exclude_min=False),
    st.integers(0, 50),
    st.sampled_from([1.0, 1e-300, 1e300, 0.5]),
    st.lists(st.floats(-(2.0**127), 2.0**127, width=32) | st.just(-np.inf), min_size=1, max_size=60),
)
def test_extreme_settings_and_logits_still_choose(
    temperature: float, top_p: float, top_k: int, penalty: float, scores: list[float]
) -> None:
    """No setting the API admits overflows, divides by zero or warns."""
    logits = np.array([*scores, 0.0], np.float32)
    sampling = Sampling(temperature=temperature, top_p=top_p, top_k=top_k, repetition_penalty=penalty, seed=1)
    chosen = Sampler(sampling, Allowed.from_ids(np.arange(len(logits))), [0]).choose(logits)
    assert logits[chosen] > -np.inf


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_a_seed_gives_the_same_ids_whatever_others_draw(seed: int) -> None:
    """Draws depend on the job's own seed, not on other jobs nor on any global generator."""
    before = random.getstate()
    logits = some_logits(5)
    runs = []
    for _ in range(3):
        sampler, other = (Sampler(Sampling(temperature=1, top_k=0, seed=s), ALL) for s in (seed, 99))
        random.random()  # noqa: S311 - moved on purpose
        runs.append([(sampler.choose(logits), other.choose(logits))[0] for _ in range(30)])
    assert runs[0] == runs[1] == runs[2]
    random.setstate(before)


def test_different_seeds_differ() -> None:
    """No two of these seeds give the same 30 ids, nor a seed and its negative; None is fresh each time."""
    logits = some_logits(5)
    seeds: list[int | None] = [0, 1, -1, 2**32, 2**63 - 1, -(2**63), None, None]
    samplers = [Sampler(Sampling(temperature=1, top_k=0, seed=seed), ALL) for seed in seeds]
    assert len({tuple(sampler.choose(logits) for _ in range(30)) for sampler in samplers}) == len(seeds)


def test_draws_follow_the_probabilities() -> None:
    """Over many draws each id comes as often as its probability says, to within five standard errors."""
    logits = np.array([2, 1, 0, -1], np.float32)
    sampler = Sampler(Sampling(temperature=1, top_k=0, top_p=1, seed=4), Allowed.from_ids(np.arange(4)))
    draws = 20_000
    counts = np.bincount([sampler.choose(logits) for _ in range(draws)], minlength=4)
    expected = probabilities(sampler, logits)
    assert np.all(np.abs(counts / draws - expected) < 5 * np.sqrt(expected * (1 - expected) / draws))


DRAWS = 20_000


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.6, top_k=20, top_p=0.95, seed=1),
        Sampling(temperature=1.5, top_k=300, top_p=0.8, repetition_penalty=1.3, seed=2),
    ],
)
def test_twenty_thousand_draws_are_those_of_transformers(sampling: Sampling) -> None:
    """By chi-square: the sum is below what one right sampler in some thousand millions would exceed."""
    logits, context = some_logits(11), [3, 3, 500, 42]
    wanted = transformers_probabilities(sampling, logits, context) * DRAWS
    sampler = Sampler(sampling, ALL, context)
    rows = [sampler.row(logits) for _ in range(DRAWS)]
    counts = np.bincount([draw for start in range(0, DRAWS, 500) for draw in choose_ids(rows[start : start + 500])],
                         minlength=len(logits))  # fmt: skip
    assert counts[wanted == 0].sum() == 0
    often = wanted >= 5
    observed = [*counts[often], counts[~often].sum()]
    expected = [*wanted[often], wanted[~often].sum()]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True) if e > 0)
    freedom = len(expected) - 1
    assert (
        statistic < freedom * (1 - 2 / (9 * freedom) + 6 * (2 / (9 * freedom)) ** 0.5) ** 3
    )  # Wilson and Hilferty


def test_the_default_settings_sort_no_vocabulary() -> None:
    """At Maple's vocabulary an id at the default settings costs a fraction of sorting the logits."""
    logits = some_logits(2, 151_936)
    sampler = Sampler(Sampling(), Allowed.from_ids(np.arange(VOCABULARY)))
    assert _median_cost(lambda: sampler.choose(logits)) < _median_cost(lambda: np.argsort(logits)) / 2


def _median_cost(work: Callable[[], object]) -> float:
    """Processor seconds."""
    costs = []
    for _ in range(50):
        started = time.process_time()
        work()
        costs.append(time.process_time() - started)
    return statistics.median(costs)
