"""The export: exactly what the trainer's evaluation forward computes with, through the ordinary loader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from maple.torch_model.load import LoadOptions, load
from tools.sapling.batch import make_batch
from tools.sapling.export import export, packed
from tools.sapling.generate import greedy
from tools.sapling.model import Sapling, Weights, hidden_states, logits
from tools.sapling.seeding import Seeding, seed
from tools.sapling.shape import Shape
from tools.sapling.stored import shape_of, stored_weights, unpacked

DEMO = Path(__file__).parents[2] / "maple" / "demo"
SMALL = Shape(vocabulary=512, window=16, expert_width=128, experts=4)
EXACT = 1e-3


@pytest.fixture(scope="module")
def small() -> Sapling:
    """A freshly seeded model, untrained."""
    model = Sapling(SMALL)
    seed(model, torch.Generator().manual_seed(5), Seeding())
    return model


@pytest.fixture(scope="module")
def small_folder(small: Sapling, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its export."""
    folder = tmp_path_factory.mktemp("small")
    export(small, folder)
    return folder


def _ids(count: int, vocabulary: int) -> list[int]:
    return torch.randint(9, vocabulary, (count,), generator=torch.Generator().manual_seed(6)).tolist()  # type: ignore[no-any-return]


def _own_logits(weights: Weights, shape: Shape, ids: list[int]) -> Tensor:
    with torch.no_grad():
        everything = torch.arange(len(ids))
        return logits(
            weights, hidden_states(weights, make_batch([(ids, [False] * len(ids))]), shape, everything).final
        )


def _loaded_logits(folder: Path, ids: list[int], pack: str) -> Tensor:
    loaded = load(
        LoadOptions(source=str(folder), device="cpu", dtype="float32", pack_experts=pack),
        progress=lambda _: None,
    )
    with torch.no_grad():
        found: Tensor = loaded.model(input_ids=torch.tensor([ids])).logits[0]
    return found


@pytest.mark.parametrize("bits", [2, 4])
def test_packing_puts_the_first_code_lowest_and_unpacking_undoes_it(bits: int) -> None:
    """The word layout of the 2-bit spelling."""
    codes = torch.arange(64) % (2**bits - 1)
    words = packed(codes, bits)
    assert words.dtype == torch.uint32
    assert int(words[0].item()) & (2**bits - 1) == int(codes[0])
    assert torch.equal(unpacked(words, bits), codes)


def test_reading_an_export_back_gives_the_trainers_weights(small: Sapling, small_folder: Path) -> None:
    """Nothing is rounded between the evaluation forward and the file."""
    with torch.no_grad():
        trained, stored = small.weights(torch.float32), stored_weights(small_folder)
    assert shape_of(small_folder) == SMALL
    assert torch.equal(trained.embedding, stored.embedding)
    assert torch.equal(trained.final_norm, stored.final_norm)
    for ours, theirs in zip(trained.layers, stored.layers, strict=True):
        for name in ("input_norm", "post_norm", "q_norm", "k_norm", "qkv", "o", "router", "gate_up", "down"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_a_head_that_is_not_the_embeddings_is_refused(
    small: Sapling, small_folder: Path, tmp_path: Path
) -> None:
    """The evaluation forward ties them, so it must not be run on a file that does not."""
    from safetensors.torch import load_file, save_file

    export(small, tmp_path)
    named = load_file(small_folder / "model.safetensors")
    named["lm_head.biases"] = named["lm_head.biases"] + 1
    save_file(named, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="copy"):
        stored_weights(tmp_path)


@pytest.mark.parametrize("pack", ["true", "false"])
def test_the_ordinary_loader_gives_the_trainers_logits(small: Sapling, small_folder: Path, pack: str) -> None:
    """A fresh model's export, past its window, within the golden bound of the exact path."""
    ids = _ids(60, SMALL.vocabulary)
    with torch.no_grad():
        ours = _own_logits(small.weights(torch.float32), SMALL, ids)
    assert (ours - _loaded_logits(small_folder, ids, pack)).abs().max() < EXACT


@pytest.mark.parametrize("pack", ["true", "false"])
def test_the_shipped_model_gives_the_evaluations_logits(pack: str) -> None:
    """The embedded files through the ordinary loader, longer than the window."""
    shape = shape_of(DEMO)
    ids = _ids(shape.window + 60, shape.vocabulary - 64)
    assert (
        _own_logits(stored_weights(DEMO), shape, ids) - _loaded_logits(DEMO, ids, pack)
    ).abs().max() < EXACT


def test_the_seeded_circuit_copies_before_any_training(small: Sapling) -> None:
    """On a random sequence and its repetition, the untrained model predicts most of the second half."""
    first = _ids(30, SMALL.vocabulary)
    with torch.no_grad():
        found = _own_logits(small.weights(torch.float32), SMALL, first + first).argmax(-1)
    assert (found[30:-1] == torch.tensor(first[1:])).float().mean() > 0.8


def test_decoding_with_a_cache_agrees_with_the_whole_forward(small: Sapling) -> None:
    """Two prompts of unequal length, past the window."""
    with torch.no_grad():
        weights = small.weights(torch.float32)
    prompts = [_ids(30, SMALL.vocabulary), _ids(7, SMALL.vocabulary)]
    for prompt, reply in zip(prompts, greedy(weights, SMALL, prompts, 12, stop=-1), strict=True):
        found = _own_logits(weights, SMALL, prompt + reply).argmax(-1)
        assert found[len(prompt) - 1 : -1].tolist() == reply


def test_shipped_rows_are_exactly_ternary_and_the_file_is_small() -> None:
    """Two-bit codes are only 0, 1 and 2, and the weights stay within 4 MB."""
    path = DEMO / "model.safetensors"
    assert path.stat().st_size <= 4_000_000
    with safe_open(path, "pt") as file:
        names = [name for name in file.keys() if name.endswith(".row_alpha")]  # noqa: SIM118 - not a dict
        assert len(names) == 7 * json.loads((DEMO / "config.json").read_text())["num_hidden_layers"]
        for name in names:
            codes = unpacked(file.get_tensor(name.replace("row_alpha", "weight")), 2)
            assert set(codes.unique().tolist()) <= {0, 1, 2}
            assert torch.isfinite(file.get_tensor(name).float()).all()
