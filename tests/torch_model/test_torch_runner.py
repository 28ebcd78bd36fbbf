"""The runner on torch: prefill, decode and reuse."""

from __future__ import annotations

import asyncio
import functools
import json
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
import tokenizers

pytest.importorskip("torch", reason="this is the runner that needs torch")

from maple_testing.engine import collect, greedy_job, never

from maple.engine.admission import QueueLimits
from maple.engine.api import Sampling
from maple.engine.cores import physical_cores
from maple.engine.runner import (
    LoadedEngine,
    PrefillLimits,
    Runner,
    SequenceSlice,
)
from maple.engine.worker import ThreadedEngine
from maple.torch_model.loader import torch_loader

job = functools.partial(greedy_job, max_tokens=24)


def loader(folder: pathlib.Path) -> Any:
    def options() -> Any:
        from maple.torch_model.load import LoadOptions

        return LoadOptions(source=str(folder), device="cpu", dtype="float32")

    return torch_loader(options, threads=1)


@pytest.fixture(scope="module")
def prompts(golden_folder: pathlib.Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((golden_folder / "prompts.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def truth(golden_folder: pathlib.Path) -> dict[str, npt.NDArray[np.float32]]:
    return safetensors.numpy.load_file(golden_folder / "golden.safetensors")


@pytest.fixture(scope="module")
def loaded(golden_folder: pathlib.Path) -> LoadedEngine:
    engine: LoadedEngine = loader(golden_folder / "bf16-stacked")(never)
    return engine


def chunks(ids: list[int], size: int) -> Iterator[tuple[int, list[int]]]:
    for start in range(0, len(ids), size):
        yield start, ids[start : start + size]


def run_in_chunks(runner: Runner, ids: list[int], size: int) -> list[npt.NDArray[np.float32]]:
    cache: Any = runner.open("", ids)
    rows = []
    for start, part in chunks(ids, size):
        one = SequenceSlice(cache=cache, ids=part, start=start, want_logits=True, cancelled=never)
        (row,) = runner.step([one])
        assert row is not None
        rows.append(row)
    runner.close(cache)
    return rows


@pytest.mark.parametrize("size", [1, 3, 7, 96])
@pytest.mark.parametrize("prompt", [0, 1, 2])
def test_chunks_give_the_golden_logits(
    loaded: LoadedEngine, prompts: Any, truth: Any, size: int, prompt: int
) -> None:
    """However a prompt is cut, the logits after each chunk are the golden ones, and the cache is freed."""
    ids = prompts["prompts"][prompt]
    rows = run_in_chunks(loaded.runner, ids, size)
    ends = [min(start + size, len(ids)) - 1 for start, _ in chunks(ids, size)]
    np.testing.assert_allclose(np.stack(rows), truth[f"bf16.{prompt}.fp64"][ends], atol=1e-3)
    assert loaded.runner.kv_bytes == 0


def test_slices_of_several_sequences_do_not_mix(loaded: LoadedEngine, prompts: Any) -> None:
    """Two sequences in one step get, bit for bit, the rows that each gets alone."""
    runner: Any = loaded.runner
    pair = prompts["prompts"][1:3]
    wanted = [run_in_chunks(runner, ids, len(ids))[0] for ids in pair]
    caches = [runner.open("", ids) for ids in pair]
    slices = [
        SequenceSlice(cache=cache, ids=ids, start=0, want_logits=True, cancelled=never)
        for cache, ids in zip(caches, pair, strict=True)
    ]
    for row, alone in zip(runner.step(slices), wanted, strict=True):
        np.testing.assert_array_equal(row, alone)
    assert runner.kv_bytes > 0
    for cache in caches:
        runner.close(cache)


def test_a_cancelled_slice_stops_between_layers(loaded: LoadedEngine, prompts: Any) -> None:
    """A pass whose sequence is cancelled after the first layer ends without logits; its neighbour is run."""
    runner: Any = loaded.runner
    ids = prompts["prompts"][2]
    asked: list[int] = []

    def after_one_layer() -> bool:
        asked.append(1)
        return len(asked) > 1

    caches = [runner.open(owner, ids) for owner in ("one", "two")]
    slices = [
        SequenceSlice(cache=cache, ids=ids, start=0, want_logits=True, cancelled=cancelled)
        for cache, cancelled in zip(caches, (after_one_layer, never), strict=True)
    ]
    cut, whole = runner.step(slices)
    assert (cut, len(asked)) == (None, 2)
    np.testing.assert_array_equal(whole, run_in_chunks(runner, ids, len(ids))[0])
    for cache in caches:
        runner.close(cache)
    assert runner.kv_bytes == 0


def test_the_checkpoint_is_described(loaded: LoadedEngine, golden_folder: pathlib.Path) -> None:
    """What is served comes from the checkpoint: window, vocabulary, ids that end a text."""
    served = loaded.served
    assert served.folder.samefile(golden_folder / "bf16-stacked")
    assert (served.vocabulary, served.max_model_len) == (512, 4096)
    assert 2 in served.eos_token_ids
    assert served.device == "cpu"
    assert loaded.token_ids.tolist() == list(range(512))


@pytest.mark.parametrize("chunk", [1, 3, 7, 96])
@pytest.mark.parametrize("spelling", ["bf16-stacked", "bf16-per-expert"])
async def test_the_engine_continues_as_golden(
    golden_folder: pathlib.Path,
    golden_tokenizer: tokenizers.Tokenizer,
    prompts: Any,
    spelling: str,
    chunk: int,
) -> None:
    """A real checkpoint behind the thread, greedy, gives the golden continuation for any prefill chunk."""
    prefill = PrefillLimits(chunk=chunk, budget=chunk)
    engine = ThreadedEngine(loader(golden_folder / spelling), limits=QueueLimits(), prefill=prefill)
    engine.start()
    await engine.loaded()
    assert (engine.status, engine.error) == ("ok", None)
    greedy = prompts["greedy"]
    text, finish = await collect(engine.submit(job(prompts["prompts"][greedy["prompt"]])))
    assert text == golden_tokenizer.decode(greedy["continuation"], skip_special_tokens=False)
    assert (finish.reason, finish.completion_tokens) == ("length", 24)
    await engine.close()


async def test_seeds_decide_the_text_whatever_runs_beside(golden_folder: pathlib.Path, prompts: Any) -> None:
    """With a real model too, the same seed gives the same text ten times among others; others differ."""
    engine = ThreadedEngine(loader(golden_folder / "mlx-2bit"), limits=QueueLimits(slots=3, depth=20))
    engine.start()
    await engine.loaded()
    ids = prompts["prompts"][2]
    seeded = job(ids, sampling=Sampling(temperature=1, seed=5))
    first, _ = await collect(engine.submit(seeded))
    others = [engine.submit(job(ids[n:], sampling=Sampling(temperature=1, seed=n))) for n in range(1, 6)]
    again = await asyncio.gather(*(collect(engine.submit(seeded)) for _ in range(10)))
    assert {text for text, _ in again} == {first}
    assert first not in {text for text, _ in await asyncio.gather(*map(collect, others))}
    await engine.close()


@pytest.fixture
def broken_folder(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> Callable[[str], pathlib.Path]:
    """A checkpoint with something wrong."""

    def make(fault: str) -> pathlib.Path:
        folder = tmp_path / "maple-broken"
        if fault == "missing folder":
            return folder
        shutil.copytree(golden_folder / "mlx-2bit", folder)
        weights, config = folder / "model.safetensors", folder / "config.json"
        if fault == "truncated shard":
            weights.write_bytes(weights.read_bytes()[:-1000])
        elif fault == "wrong config":
            config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_size": 7}))
        elif fault == "not a Maple":
            config.write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
        elif fault == "no tokenizer":
            (folder / "tokenizer.json").unlink()
        return folder

    return make


@pytest.mark.parametrize(
    "fault", ["missing folder", "truncated shard", "wrong config", "not a Maple", "no tokenizer"]
)
async def test_a_checkpoint_that_cannot_be_loaded_is_one_line(
    broken_folder: Callable[[str], pathlib.Path], tmp_path: pathlib.Path, fault: str
) -> None:
    """Whatever is wrong, the engine is in error with one line that tells no path."""
    engine = ThreadedEngine(loader(broken_folder(fault)), limits=QueueLimits())
    engine.start()
    await engine.loaded()
    assert engine.status == "error"
    assert engine.error
    assert "\n" not in engine.error
    assert str(tmp_path) not in engine.error
    assert "see" not in engine.error.split()[-3:]
    assert engine.error != "the model could not be loaded; the server's log says why"
    await engine.close()


def test_physical_cores_are_counted() -> None:
    """At least one, and no more than the system has."""
    import os

    assert 1 <= physical_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform == "win32", reason="a subprocess of its own is not worth its time there")
def test_importing_the_engine_does_not_import_torch() -> None:
    """A server's start must not wait for torch: only the loader imports it, in the engine's thread."""
    import subprocess

    code = "import sys, maple.engine.worker, maple.scripted.engine; sys.exit('torch' in sys.modules)"
    root = pathlib.Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0
