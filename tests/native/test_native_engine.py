"""The engine on the native kernels, from prompt to text."""

from __future__ import annotations

import asyncio
import functools
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
import tokenizers
from maple_testing.engine import collect, greedy_job, never
from maple_testing.guard import HANG_GUARD

from maple.engine.admission import QueueLimits
from maple.engine.api import Finish, Sampling
from maple.engine.errors import GenerationFailed, PromptTooLong
from maple.engine.runner import LoadedEngine, Loader, PrefillLimits, SequenceSlice
from maple.engine.worker import ThreadedEngine
from maple.native.library import Unavailable, available
from maple.native.loader import KernelOptions, native_loader
from maple.native.packfile import is_rotted
from maple.native.runner import NativeRunner
from maple.native.weights import NativeSource

job = functools.partial(greedy_job, max_tokens=24)

pytestmark = pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="the kernels are not built here: torch serves alone"
)

SPELLINGS = ["mlx-2bit", "bf16-stacked", "bf16-per-expert"]
EVALUATIONS = {
    "mlx-2bit": "mlx2bit.{}.exact",
    "bf16-stacked": "bf16.{}.fp64",
    "bf16-per-expert": "bf16.{}.fp64",
}
BOUND = {"fp32": 1e-3, "int8x2": 1e-2}

Rows = list[npt.NDArray[np.float32]]


def loader(folder: pathlib.Path, **options: Any) -> Loader:
    return native_loader(
        NativeSource(source=str(folder)), KernelOptions(**{"threads": 2, "kv_cache_mb": 64, **options})
    )


@pytest.fixture
def load(golden_folder: pathlib.Path) -> Iterator[Callable[..., LoadedEngine]]:
    """Load a golden spelling; what was loaded is shut at the end."""
    made: list[LoadedEngine] = []

    def run(spelling: str = "mlx-2bit", **options: Any) -> LoadedEngine:
        made.append(loader(golden_folder / spelling, **options)(never))
        return made[-1]

    yield run
    for one in made:
        assert isinstance(one.runner, NativeRunner)
        one.runner.shut()


@pytest.fixture(scope="module")
def prompts(golden_folder: pathlib.Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((golden_folder / "prompts.json").read_text())
    return content


@pytest.fixture(scope="module")
def truth(golden_folder: pathlib.Path) -> dict[str, npt.NDArray[np.float32]]:
    files = golden_folder / "golden.safetensors", golden_folder.parent / "exact_head.safetensors"
    return {name: rows for file in files for name, rows in safetensors.numpy.load_file(file).items()}


def run_in_chunks(runner: Any, ids: list[int], size: int) -> Rows:
    cache = runner.open("", ids)
    rows = []
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        (row,) = runner.step(
            [SequenceSlice(cache=cache, ids=part, start=start, want_logits=True, cancelled=never)]
        )
        rows.append(row)
    runner.close(cache)
    return rows


@pytest.mark.parametrize("size", [1, 3, 7, 96])
@pytest.mark.parametrize("activations", ["fp32", "int8x2"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_chunks_give_the_golden_logits(
    load: Any, prompts: Any, truth: Any, spelling: str, activations: str, size: int
) -> None:
    """Every spelling, cut in any way, gives the golden logits, and every KV block comes back."""
    runner = load(spelling, activations=activations).runner
    for number, ids in enumerate(prompts["prompts"]):
        rows = run_in_chunks(runner, ids, size)
        ends = [min(start + size, len(ids)) - 1 for start in range(0, len(ids), size)]
        wanted = truth[EVALUATIONS[spelling].format(number)][ends]
        np.testing.assert_allclose(np.stack(rows), wanted, atol=BOUND[activations])
    assert runner.kv_bytes == 0


@attrs.define
class Walker:
    """A sequence that runs through its ids in slices of random sizes."""

    ids: list[int]
    cache: Any
    at: int = 0
    rows: dict[int, npt.NDArray[np.float32]] = attrs.Factory(dict)


def test_rows_do_not_depend_on_neighbours_or_chunks(load: Any, prompts: Any) -> None:
    """Eight sequences, joining and leaving, in random slices: each row is bit for bit the one got alone."""
    runner = load(slots=8).runner
    rng = np.random.default_rng(0)
    long = (prompts["prompts"][2] * 40)[:700]
    everyone = [long[n * 7 : n * 7 + 60 * (n + 1)] for n in range(8)]
    alone = [np.stack(run_in_chunks(runner, ids, 1)) for ids in everyone]
    walkers = [Walker(ids, runner.open("", ids)) for ids in everyone]
    active = walkers[:3]
    waiting = walkers[3:]
    while active:
        slices = [
            SequenceSlice(
                cache=one.cache,
                ids=one.ids[one.at : one.at + int(rng.integers(1, 40))],
                start=one.at,
                want_logits=True,
                cancelled=never,
            )
            for one in active
        ]
        for one, part, row in zip(active, slices, runner.step(slices), strict=True):
            one.at += len(part.ids)
            one.rows[one.at - 1] = row
        for one in [one for one in active if one.at == len(one.ids)]:
            runner.close(one.cache)
            active.remove(one)
        if waiting:
            active.append(waiting.pop())
    for one, rows in zip(walkers, alone, strict=True):
        for position, row in one.rows.items():
            np.testing.assert_array_equal(row, rows[position])
    assert runner.kv_bytes == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_do_not_depend_on_threads(load: Any, prompts: Any, threads: int) -> None:
    """Any number of threads gives the same bits."""
    ids = prompts["prompts"][2]
    wanted = run_in_chunks(load(threads=2).runner, ids, 7)
    np.testing.assert_array_equal(run_in_chunks(load(threads=threads).runner, ids, 7), wanted)


def test_more_tokens_than_a_call_takes_are_split(load: Any, prompts: Any) -> None:
    """Slices that do not fit into one call of the kernels run in several, with the same rows."""
    loaded = load(slots=2)
    runner, ids = loaded.runner, (prompts["prompts"][2] * 10)[: loaded.prefill.budget]
    caches = [runner.open(owner, ids) for owner in ("one", "two")]
    slices = [
        SequenceSlice(cache=cache, ids=ids, start=0, want_logits=True, cancelled=never) for cache in caches
    ]
    first, second = runner.step(slices)
    np.testing.assert_array_equal(first, second)
    for cache in caches:
        runner.close(cache)


def test_a_cancelled_slice_is_left_out(load: Any, prompts: Any) -> None:
    """A sequence that is cancelled before its step has no row and takes no blocks; its neighbour is run."""
    runner, ids = load().runner, prompts["prompts"][2]
    caches = [runner.open(owner, ids) for owner in ("one", "two")]
    slices = [
        SequenceSlice(cache=cache, ids=ids, start=0, want_logits=True, cancelled=cut)
        for cache, cut in zip(caches, (lambda: True, never), strict=True)
    ]
    cut, whole = runner.step(slices)
    assert cut is None
    assert caches[0].store.nbytes == 0
    np.testing.assert_array_equal(whole, run_in_chunks(runner, ids, len(ids))[0])
    for cache in caches:
        runner.close(cache)
    assert runner.kv_bytes == 0


def test_the_checkpoint_is_described(load: Any, golden_folder: pathlib.Path) -> None:
    """What is served comes from the checkpoint, and the words for /health say how it is computed."""
    served = load("bf16-per-expert").served
    assert served.folder.samefile(golden_folder / "bf16-per-expert")
    assert (served.vocabulary, served.max_model_len) == (512, 4096)
    assert (served.device, served.eos_token_ids) == ("cpu", (0, 2))
    words = served.dtype.split()
    assert words[0] == "native"
    assert "int8x2 activations, 2-bit ternary" in served.dtype


@pytest.mark.parametrize("chunk", [1, 3, 7, 96])
@pytest.mark.parametrize("spelling", ["bf16-stacked", "bf16-per-expert"])
async def test_the_engine_continues_as_golden(
    golden_folder: pathlib.Path,
    golden_tokenizer: tokenizers.Tokenizer,
    prompts: Any,
    spelling: str,
    chunk: int,
) -> None:
    """A checkpoint behind the thread, greedy, gives the golden continuation for any prefill chunk."""
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


@pytest.mark.parametrize("slots", [1, 3, 8])
async def test_seeds_decide_the_text_whatever_runs_beside(
    golden_folder: pathlib.Path, prompts: Any, slots: int
) -> None:
    """The same seed gives the same text alone, queued, and among others that decode or prefill beside it."""
    engine = ThreadedEngine(
        loader(golden_folder / "mlx-2bit", slots=slots), limits=QueueLimits(slots=slots, depth=40)
    )
    engine.start()
    await engine.loaded()
    ids = prompts["prompts"][2]
    seeded = job(ids, sampling=Sampling(temperature=1, seed=5))
    first, _ = await collect(engine.submit(seeded))
    mixed = []
    for n in range(1, 11):
        mixed.append(engine.submit(job((ids * 9)[: 61 * n], sampling=Sampling(temperature=1, seed=n))))
        mixed.append(engine.submit(seeded))
    texts = [text for text, _ in await asyncio.gather(*map(collect, mixed))]
    assert set(texts[1::2]) == {first}
    assert first not in texts[::2]
    assert engine.stats().kv_bytes == 0
    await engine.close()


async def test_the_context_is_cut_to_what_memory_holds(golden_folder: pathlib.Path) -> None:
    """With a small KV budget one sequence may take all of it; others wait in order, and none ever fits more."""
    slots, megabytes = 4, 1
    engine = ThreadedEngine(
        loader(golden_folder / "mlx-2bit", slots=slots, kv_cache_mb=megabytes),
        limits=QueueLimits(slots=slots, depth=0),
    )
    engine.start()
    await engine.loaded()
    assert engine.served is not None
    longest = engine.served.max_model_len
    assert 64 <= longest < 4096
    prompt = [5, 17] * (longest // 2)
    jobs = [engine.submit(job([n, *prompt[:-5]], max_tokens=4)) for n in range(slots)]
    ended: list[int] = []

    async def run(number: int) -> Finish:
        _, finish = await collect(jobs[number])
        ended.append(number)
        assert engine.stats().kv_bytes <= megabytes << 20
        return finish

    finishes = await asyncio.gather(*map(run, range(slots)))
    assert [finish.prompt_tokens for finish in finishes] == [longest - 4] * slots
    assert ended == sorted(ended)
    with pytest.raises(PromptTooLong):
        await collect(engine.submit(job(prompt, max_tokens=64)))
    assert engine.stats().kv_bytes == 0
    await engine.close()


def test_a_native_load_imports_no_torch(golden_folder: pathlib.Path) -> None:
    """Neither torch nor Transformers is imported, nor the hub's client, to serve a folder."""
    code = f"""
import sys
from maple.choose_engine import model_loader
from maple.settings import Settings
loaded = model_loader(Settings(model_path={str(golden_folder / "mlx-2bit")!r}, kv_cache_mb=16))(lambda: False)
assert loaded.served.dtype.startswith("native"), loaded.served.dtype
heavy = {{"torch", "transformers", "huggingface_hub"}} & sys.modules.keys()
sys.exit(str(heavy) if heavy else 0)
"""
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_pack_that_rots_is_made_anew_while_the_server_runs(
    golden_folder: pathlib.Path, prompts: Any, tmp_path: pathlib.Path
) -> None:
    """A failed answer has the pack's sum compared; what runs meanwhile fails, and what comes then is as before."""
    source = NativeSource(
        source=str(golden_folder / "bf16-stacked"), threads=1, cache_dir=tmp_path, keep_from=0
    )
    engine = ThreadedEngine(
        native_loader(source, KernelOptions(threads=1, kv_cache_mb=8)), limits=QueueLimits()
    )
    engine.start()
    await engine.loaded()
    ids = prompts["prompts"][2]
    sound, _ = await collect(engine.submit(job(ids)))
    (pack,) = (tmp_path / "native").glob("*/model.safetensors")
    with pack.open("r+b") as file:  # no number any more, in every scale and row behind the header
        start = 8 + int.from_bytes(file.read(8), "little")
        file.seek(start)
        file.write(b"\xff" * (pack.stat().st_size - start))
    with pytest.raises(GenerationFailed):
        await collect(engine.submit(job(ids)))
    async with asyncio.timeout(HANG_GUARD):
        while engine.status == "ok":  # noqa: ASYNC110 -- nothing tells of it but the log
            await asyncio.sleep(0.001)
    await engine.loaded()
    assert (await collect(engine.submit(job(ids))))[0] == sound
    (anew,) = (tmp_path / "native").glob("*/model.safetensors")
    assert not is_rotted(anew.parent)
    await engine.close()
