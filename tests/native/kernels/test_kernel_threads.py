"""A step on few and on many threads: the same bits, and work enough for all of them."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from maple.bench.random_checkpoint import FULL_SIZE, write_random
from maple.native.model import NativeModel, StepSlice
from maple.native.weights import NativeSource, NativeWeights, load_weights

BLOCK = 64


def load(folder: pathlib.Path) -> NativeWeights:
    return load_weights(NativeSource(source=str(folder)), progress=lambda _: None, cancelled=lambda: False)


@pytest.fixture(scope="module")
def wide(wide_folder: pathlib.Path) -> NativeWeights:
    """Two KV heads, so that threads beyond two share a sequence's attention by its keys."""
    return load(wide_folder)


def logits(wide: NativeWeights, sizes: list[int], *, threads: int, path: str | None = None) -> bytes:
    """Of the last token of each part of a text that is cut into ``sizes``."""
    ids = np.random.default_rng(3).integers(0, 512, sum(sizes)).astype(np.int32)
    blocks = np.arange(-(-len(ids) // BLOCK), dtype=np.int32)
    rows, at = [], 0
    with NativeModel(
        wide.shape, wide.weights, threads=threads, kv_blocks=len(blocks), max_tokens=512, path=path
    ) as model:
        for size in sizes:
            part = StepSlice(tokens=ids[at : at + size], start=at, blocks=blocks, sliding_blocks=blocks)
            rows.append(model.step([part]).copy())
            at += size
    return np.concatenate(rows).tobytes()


@pytest.mark.parametrize("threads", [2, 3, 4, 7, 16, 33, 64, 128])
def test_threads_do_not_show_behind_a_long_context(threads: int, wide: NativeWeights) -> None:
    """Single tokens, drafts of a few and a longer part get the bits of one thread, whoever took which keys."""
    sizes = [500, 1, 1, 3, 8, 140, 1]
    assert logits(wide, sizes, threads=threads) == logits(wide, sizes, threads=1)


def test_longer_segments_do_not_show(wide: NativeWeights) -> None:
    """Beyond 64 blocks of keys a segment is two, from the same position on however the text was cut."""
    whole, cut = [512] * 8 + [40, 1], [500] * 8 + [133, 3, 1]
    last = wide.shape.vocabulary * 4
    assert logits(wide, whole, threads=1)[-last:] == logits(wide, cut, threads=16)[-last:]


def test_paths_do_not_show_behind_a_long_context(wide: NativeWeights, paths: Any) -> None:
    """Every instruction set takes and merges the segments alike."""
    assert len({logits(wide, [130, 1], threads=5, path=path) for path in paths}) == 1


@pytest.fixture(scope="module")
def real_widths(tmp_path_factory: pytest.TempPathFactory) -> NativeWeights:
    """One layer of each kind as wide as Maple-Preview, with fewer experts and words."""
    config = {
        **FULL_SIZE,
        "vocab_size": 16384,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "num_experts": 16,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    return load(write_random(tmp_path_factory.mktemp("real"), config, progress=lambda done, total: None))


@pytest.mark.parametrize("threads", [1, 2, 4, 8, 16, 32, 64, 128])
def test_every_phase_has_work_for_every_thread(threads: int, real_widths: NativeWeights) -> None:
    """No phase of a single token's step has fewer chunks than threads, but those that are short of work.

    Attention's chunks are never shorter than a KV block of a head, the router's than a quarter of a row block:
    each a microsecond at what a thread reads.
    """
    with NativeModel(real_widths.shape, real_widths.weights, threads=threads, kv_blocks=1) as model:
        chunks = model.phase_chunks(4095)
    assert min(chunks[name] for name in ("qkv", "output", "gate_up", "down", "head")) >= threads
    assert chunks["full attention"] >= threads
    assert chunks["sliding attention"] >= min(threads, 4 * 8)
    assert chunks["router"] >= min(threads, 4)


@pytest.mark.parametrize("threads", [1, 2])
def test_few_threads_get_long_chunks(threads: int, real_widths: NativeWeights) -> None:
    """One sequence's attention is not cut where its KV heads are enough."""
    with NativeModel(real_widths.shape, real_widths.weights, threads=threads, kv_blocks=1) as model:
        chunks = model.phase_chunks(4095)
    assert chunks["full attention"] == chunks["sliding attention"] == 4
    assert max(chunks["output"], chunks["gate_up"], chunks["down"]) <= 32
