"""Log probabilities of prompts and answers: both engines give those of the model itself."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import torch
from maple_testing.engine import greedy_job, never, quiet

from maple.engine.api import Finish, Job, Piece, Sampling
from maple.engine.runner import SCORED_ROWS, LoadedEngine
from maple.engine.scheduler import Scheduler
from maple.engine.scores import Score
from maple.native.library import Unavailable, available
from maple.native.loader import KernelOptions, native_loader
from maple.native.weights import NativeSource
from maple.torch_model.load import LoadOptions, load
from maple.torch_model.loader import torch_loader

PROMPT = tuple(5 + one * 7 % 200 for one in range(150))
WILD = Sampling(
    temperature=1.5, seed=3, presence=1, repetition_penalty=1.3, bias=((9, 5.0),), ignore_eos=True
)


@pytest.fixture(scope="module")
def options(golden_folder: pathlib.Path) -> LoadOptions:
    return LoadOptions(source=str(golden_folder / "bf16-stacked"), device="cpu", dtype="float32")


@pytest.fixture(scope="module", params=["torch", "native"])
def loaded(request: pytest.FixtureRequest, options: LoadOptions) -> Iterator[LoadedEngine]:
    if request.param == "torch":
        yield torch_loader(lambda: options, threads=1)(never)
        return
    if isinstance(available(), Unavailable):
        pytest.skip("the kernels are not built here")
    kernels = KernelOptions(threads=2, kv_cache_mb=64, activations="fp32")
    made = native_loader(NativeSource(source=options.source), kernels)(never)
    yield made
    made.runner.shut()  # type: ignore[attr-defined] # it is a NativeRunner


def run(loaded: LoadedEngine, job: Job) -> tuple[str, list[Score], Finish]:
    """Text, scores and end; no step gives more rows of a prompt than it may."""
    scheduler: Scheduler[int] = Scheduler(loaded)
    scheduler.add(0, job, cancelled=never)
    text, scores, done = "", list[Score](), 0
    while True:
        report = scheduler.step()
        for prefill in report.prefills.values():
            assert job.scores is None or prefill.done_tokens - done <= SCORED_ROWS
            done = prefill.done_tokens
        for delivery in report.deliveries:
            for item in delivery.items:
                if isinstance(item, Finish):
                    return text, scores, item
                assert isinstance(item, Piece)
                text += item.text
                scores += item.scores


def test_scores_are_the_models_own(loaded: LoadedEngine, options: LoadOptions) -> None:
    """Those of the prompt, the first of which has none, and of the answer, whatever it was sampled by."""
    text, scores, finish = run(loaded, greedy_job(PROMPT, max_tokens=10, sampling=WILD, scores=2, echo=True))
    assert len(scores) == len(PROMPT) + finish.completion_tokens
    assert b"".join(one.token for one in scores).decode("utf-8", "replace") == text
    assert scores[0].logprob is None
    with torch.inference_mode():
        rows = load(options, progress=quiet).model(torch.tensor([PROMPT])).logits[0].float()
    rows = rows[:, : int(loaded.token_ids[-1]) + 1].log_softmax(-1)
    for place, score in enumerate(scores[1 : len(PROMPT)], 1):
        wanted = rows[place - 1]
        assert score.logprob == pytest.approx(float(wanted[PROMPT[place]]), abs=2e-3)
        assert score.top[0][1] == pytest.approx(float(wanted.max()), abs=2e-3)
    assert scores[len(PROMPT)].top[0][1] == pytest.approx(float(rows[-1].max()), abs=2e-3)


def test_a_prompt_can_be_scored_alone(loaded: LoadedEngine) -> None:
    """With the same scores, though all of it is there already from before."""
    _, before, _ = run(loaded, greedy_job(PROMPT, max_tokens=3, scores=0, echo=True))
    text, scores, finish = run(loaded, greedy_job(PROMPT, max_tokens=0, scores=0, echo=True))
    assert scores == before[: len(PROMPT)]
    assert (finish.reason, finish.completion_tokens, finish.cached_tokens) == ("length", 0, 0)
    assert text.encode("utf-8", "replace").startswith(b"".join(one.token for one in scores)[:20])


def test_what_asks_for_no_scores_is_echoed_from_the_cache(loaded: LoadedEngine) -> None:
    """The text needs no logits."""
    text, _, _ = run(loaded, greedy_job(PROMPT, max_tokens=0, scores=0, echo=True))
    again, scores, _ = run(loaded, greedy_job(PROMPT, max_tokens=0, echo=True))
    assert (again, scores) == (text, [])
