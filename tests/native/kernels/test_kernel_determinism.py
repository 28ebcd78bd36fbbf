"""A sequence's logits are the same bits whatever shares its steps, however it is cut and however many threads
run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

SETTINGS = [("int8x2", "f16"), ("int8", "int8"), ("fp32", "f32"), ("int8x2", "bf16")]


def alone(golden: Any, sequences: Any, prompt: list[int], mode: str, kv: str, **options: Any) -> bytes:
    """All logits of a prompt, run in one step."""
    (conversation,) = sequences(1)
    with golden.model(activations=mode, kv_dtype=kv, **options) as model:
        return bytes(model.step([conversation.slice(prompt, len(prompt))]).tobytes())


@pytest.mark.parametrize(("mode", "kv"), SETTINGS)
def test_threads_do_not_show(mode: str, kv: str, golden_of: Any, sequences: Any) -> None:
    """One, two, three and seven threads give the same bits."""
    golden = golden_of("mlx-2bit")
    prompt = golden.prompts[2]
    answers = {alone(golden, sequences, prompt, mode, kv, threads=n) for n in (1, 2, 3, 7)}
    assert len(answers) == 1


@pytest.mark.parametrize(("mode", "kv"), SETTINGS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 64, 65])
def test_chunking_does_not_show(size: int, mode: str, kv: str, golden_of: Any, sequences: Any) -> None:
    """Every cut of the prompt gives the bits of the whole."""
    golden = golden_of("mlx-2bit")
    prompt = golden.prompts[2]
    (conversation,) = sequences(1)
    rows = []
    with golden.model(activations=mode, kv_dtype=kv) as model:
        for first in range(0, len(prompt), size):
            part = prompt[first : first + size]
            rows.append(model.step([conversation.slice(part, len(part))]))
    assert np.concatenate(rows).tobytes() == alone(golden, sequences, prompt, mode, kv)


@pytest.mark.parametrize(("mode", "kv"), SETTINGS)
def test_neighbours_do_not_show(mode: str, kv: str, golden_of: Any, sequences: Any) -> None:
    """Among seven others with random chunks, in a place of its own in each step, a sequence gets its own
    bits.
    """
    golden = golden_of("mlx-2bit")
    rng = np.random.default_rng(4)
    conversations = sequences(8)
    prompts = [
        golden.prompts[2],
        *([int(t) for t in rng.integers(0, 512, n)] for n in (5, 40, 77, 100, 13, 1, 90)),
    ]
    rows: list[Any] = []
    with golden.model(activations=mode, kv_dtype=kv) as model:
        while conversations[0].length < len(prompts[0]):
            parts: list[Any] = []
            place = (0, 0)
            for i in rng.permutation(8):
                at = conversations[i].length
                tokens = prompts[i][at : at + int(rng.integers(1, 12))]
                if not tokens:
                    continue
                if i == 0:
                    place = (sum(part.logits for part in parts), len(tokens))
                parts.append(conversations[i].slice(tokens, len(tokens)))
            rows.append(model.step(parts)[place[0] : sum(place)])
    assert np.concatenate(rows).tobytes() == alone(golden, sequences, prompts[0], mode, kv)


@pytest.mark.parametrize(("mode", "kv"), SETTINGS)
def test_paths_do_not_show(mode: str, kv: str, golden_of: Any, sequences: Any, paths: Any) -> None:
    """Every instruction set gives the bits of the portable code, norms, attention and 4-bit head included."""
    golden = golden_of("mlx-2bit")
    assert len({alone(golden, sequences, golden.prompts[2], mode, kv, path=path) for path in paths}) == 1


def test_released_sliding_blocks_are_not_read(golden_of: Any, sequences: Any) -> None:
    """Entries of the sliding table before the window may be anything; the logits do not change by a bit."""
    golden = golden_of("mlx-2bit")
    prompt = golden.prompts[2]
    kept, released = sequences(2)
    with golden.model() as model:
        model.step([kept.slice(prompt[:90], 1)])
        model.step([released.slice(prompt[:90], 1)])
        released.sliding[0] = -1  # positions 0..63; the window of 8 starts at 83
        one = model.step([kept.slice(prompt[90:], 6)])
        two = model.step([released.slice(prompt[90:], 6)])
    assert one.tobytes() == two.tobytes()


def test_a_copied_block_continues_the_sequence(golden_of: Any, sequences: Any) -> None:
    """KV blocks carried over as bytes (prefix reuse, sessions) continue with the same bits."""
    golden = golden_of("mlx-2bit")
    prompt = golden.prompts[2]
    source, copy = sequences(2)
    with golden.model() as model:
        model.step([source.slice(prompt[:64], 1)])
        for sliding, mine, theirs in (
            (False, copy.blocks, source.blocks),
            (True, copy.sliding, source.sliding),
        ):
            model.kv_block(mine[0], sliding=sliding)[:] = model.kv_block(theirs[0], sliding=sliding)
        copy.length = 64
        one = model.step([source.slice(prompt[64:], 32)])
        two = model.step([copy.slice(prompt[64:], 32)])
    assert one.tobytes() == two.tobytes()
