"""The whole step against the golden logits: every path, spelling and activation mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from maple.native.library import KernelInfo, available

BOUND = {"fp32": 1e-3, "int8x2": 1e-2}
SPELLINGS = ("mlx-2bit", "bf16-stacked", "bf16-per-expert")


def chunked(model: Any, conversation: Any, tokens: list[int], size: int) -> Any:
    """All logits of ``tokens``, ``size`` at a time."""
    rows = []
    for first in range(0, len(tokens), size):
        part = tokens[first : first + size]
        rows.append(model.step([conversation.slice(part, len(part))]))
    return np.concatenate(rows)


def each_path() -> Iterable[str]:
    """Every path this processor can run; ``scalar`` at least is always named."""
    info = available()
    return info.paths if isinstance(info, KernelInfo) else ("scalar",)


@pytest.mark.parametrize("path", each_path())
@pytest.mark.parametrize("mode", ["fp32", "int8x2"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_forward_matches(spelling: str, mode: str, path: str, golden_of: Any, sequences: Any) -> None:
    """One step a prompt, all logits, within the bound of the activation mode."""
    golden = golden_of(spelling)
    with golden.model(activations=mode, path=path) as model:
        for conversation, prompt, wanted in zip(sequences(3), golden.prompts, golden.logits, strict=True):
            got = chunked(model, conversation, prompt, 256)
            assert np.abs(got - wanted).max() <= BOUND[mode]


@pytest.mark.parametrize("path", each_path())
@pytest.mark.parametrize("mode", ["fp32", "int8x2"])
@pytest.mark.parametrize("size", [1, 3, 7, 96])
def test_chunks_match(size: int, mode: str, path: str, golden_of: Any, sequences: Any) -> None:
    """Token by token and in chunks of any size the logits stay within the same bound."""
    golden = golden_of("mlx-2bit")
    with golden.model(activations=mode, path=path) as model:
        for conversation, prompt, wanted in zip(sequences(3), golden.prompts, golden.logits, strict=True):
            assert np.abs(chunked(model, conversation, prompt, size) - wanted).max() <= BOUND[mode]


@pytest.mark.parametrize("path", each_path())
@pytest.mark.parametrize("mode", ["fp32", "int8x2"])
@pytest.mark.parametrize("count", range(1, 9))
def test_batches_of_mixed_lengths_match(
    count: int, mode: str, path: str, golden_of: Any, sequences: Any
) -> None:
    """Up to eight sequences of different prompts and chunk sizes in the same steps."""
    golden = golden_of("bf16-stacked")
    conversations = sequences(count)
    collected: list[list[Any]] = [[] for _ in range(count)]
    with golden.model(activations=mode, path=path) as model:
        while True:
            parts, owners = [], []
            for i, conversation in enumerate(conversations):
                prompt = golden.prompts[i % 3]
                tokens = prompt[conversation.length : conversation.length + 1 + 5 * i]
                if tokens:
                    parts.append(conversation.slice(tokens, len(tokens)))
                    owners.append((i, len(tokens)))
            if not parts:
                break
            logits, row = model.step(parts), 0
            for i, count in owners:
                collected[i].append(logits[row : row + count])
                row += count
    for i, rows in enumerate(collected):
        assert np.abs(np.concatenate(rows) - golden.logits[i % 3]).max() <= BOUND[mode]


@pytest.mark.parametrize("path", each_path())
@pytest.mark.parametrize("mode", ["fp32", "int8x2"])
@pytest.mark.parametrize("spelling", ["mlx-2bit", "bf16-stacked"])
def test_greedy_continuation(spelling: str, mode: str, path: str, golden_of: Any, sequences: Any) -> None:
    """Twenty-four greedy tokens are those of the golden run (they are given for the bf16 spelling)."""
    golden = golden_of(spelling)
    prompt = golden.prompts[golden.greedy_prompt]
    (conversation,) = sequences(1)
    with golden.model(activations=mode, path=path) as model:
        token = int(model.step([conversation.slice(prompt, 1)])[0].argmax())
        chosen = [token]
        while len(chosen) < len(golden.continuation):
            token = int(model.step([conversation.slice([token], 1)])[0].argmax())
            chosen.append(token)
    if spelling == "mlx-2bit":
        first = golden.logits[golden.greedy_prompt][-1]
        assert chosen[0] == int(first.argmax())
    else:
        assert chosen == golden.continuation


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "int8"])
@pytest.mark.parametrize("path", each_path())
def test_kv_dtypes(path: str, kv_dtype: str, golden_of: Any, sequences: Any) -> None:
    """f32 and f16 keep the default bound on the short prompts; bf16 and int8 are coarser by what their grid
    allows.
    """
    allowed = {"f32": 1e-2, "f16": 1e-2, "bf16": 0.15, "int8": 0.5}
    golden = golden_of("bf16-stacked")
    (conversation,) = sequences(1)
    with golden.model(kv_dtype=kv_dtype, path=path) as model:
        got = chunked(model, conversation, golden.prompts[0], 256)
    assert np.abs(got - golden.logits[0]).max() <= allowed[kv_dtype]


def test_fast_int8_activations_answer(golden_of: Any, sequences: Any) -> None:
    """int8 is reported, not bounded: finite logits that correlate with the truth."""
    golden = golden_of("bf16-stacked")
    (conversation,) = sequences(1)
    with golden.model(activations="int8") as model:
        got = chunked(model, conversation, golden.prompts[0], 256)
    assert np.isfinite(got).all()
    assert np.corrcoef(got.ravel(), golden.logits[0].ravel())[0, 1] > 0.9
