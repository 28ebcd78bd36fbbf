"""Batches and training steps of the trainer."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import torch
from tokenizers import Tokenizer

from tools.sapling.batch import NOT_LEARNT, ROUND, make_batch
from tools.sapling.model import Sapling, attention, causal, hidden_states, logits
from tools.sapling.quantise import embedding_codes, embedding_values, four_bit, ternary, ternary_codes
from tools.sapling.recipe import Recipe, Stage
from tools.sapling.samples import step_samples
from tools.sapling.seeding import Seeding, seed
from tools.sapling.shape import Shape
from tools.sapling.train import Run, train
from tools.sapling.words import Draws

DEMO = Path(__file__).parents[2] / "maple" / "demo"
SMALL = Shape(vocabulary=512, window=16, expert_width=128, experts=4)


def test_samples_in_one_batch_do_not_see_each_other() -> None:
    """A sample's logits are the same alone and between others, whatever the padding."""
    model = Sapling(SMALL)
    seed(model, torch.Generator().manual_seed(5), Seeding())
    rng = Draws(7)
    samples = [
        ([rng.randrange(9, 512) for _ in range(length)], [False] * length) for length in (5, 40, 17, 23, 9)
    ]
    with torch.no_grad():
        weights = model.weights(torch.float32)
        together = make_batch(samples, groups=2)
        found = logits(
            weights, hidden_states(weights, together, SMALL, torch.arange(len(together.ids))).final
        )
        offset = 0
        for sample in sorted(samples, key=lambda item: len(item[0])):
            alone = logits(
                weights,
                hidden_states(weights, make_batch([sample]), SMALL, torch.arange(len(sample[0]))).final,
            )
            assert (found[offset : offset + len(sample[0])] - alone).abs().max() < 1e-4
            offset += len(sample[0])


def test_a_batch_learns_the_flagged_tokens_from_the_positions_before_them() -> None:
    """Targets are the flagged ids; filling up to a round size learns nothing."""
    batch = make_batch([([10, 11, 12, 13], [False, False, True, True])])
    assert batch.targets[:2].tolist() == [12, 13]
    assert batch.learnt[:2].tolist() == [1, 2]
    assert set(batch.targets[2:].tolist()) == {NOT_LEARNT}
    assert len(batch.targets) == ROUND


def test_a_steps_samples_fill_it_exactly() -> None:
    """Every step has the same number of tokens, so few sizes ever occur."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    samples = step_samples(tokenizer, Draws(8), Recipe().stages[0].mix, 2048)
    assert sum(len(ids) for ids, _ in samples) == 2048


def test_attention_in_a_window_sees_the_query_and_the_keys_just_before_it() -> None:
    """A window of 2 is the query itself and one key before it."""
    values = torch.arange(4.0)[None, None, :, None]
    flat = torch.zeros(1, 1, 4, 1)
    assert attention(flat, flat, values, mask=causal(4, 2)).flatten().tolist() == [0.0, 0.5, 1.5, 2.5]
    assert attention(flat, flat, values, mask=causal(4, None)).flatten().tolist() == [0.0, 0.5, 1.0, 1.5]


def test_ternary_rows_have_one_scale_and_pass_gradients_through() -> None:
    """Forward −a, 0, a with a bf16 scale a; backward the identity."""
    weight = torch.tensor([[0.5, -0.4, 0.01, 0.0]], requires_grad=True)
    codes, alpha = ternary_codes(weight.detach())
    assert codes.tolist() == [[1.0, -1.0, 0.0, 0.0]]
    assert torch.equal(alpha, torch.tensor([[0.45]]).bfloat16().float())
    ternary(weight, torch.float32).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[1.0] * 4]


def test_four_bit_embeddings_are_within_half_a_step_and_pass_gradients_through() -> None:
    """Sixteen values between a group's extremes, rounded as the format defines."""
    weight = torch.randn(3, 128, generator=torch.Generator().manual_seed(9)).requires_grad_()
    codes, scale, bias = embedding_codes(weight.detach())
    error = (embedding_values(codes, scale, bias) - weight.detach()).abs().unflatten(-1, (2, 64))
    assert (error <= 0.55 * scale + 0.02).all()
    four_bit(weight).sum().backward()
    assert weight.grad is not None
    assert (weight.grad == 1).all()


def test_training_lowers_the_loss_writes_a_checkpoint_and_resumes(tmp_path: Path) -> None:
    """A few steps of one process on the real data; with a second stage it goes on from the first one's last step."""
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes((DEMO / "tokenizer.json").read_bytes())
    shape = Shape(expert_width=64, experts=4)
    first, second = (attrs.evolve(stage, tokens=1024 * 20, warm_up=2048) for stage in Recipe().stages)
    recipe = Recipe(shape=shape, processes=1, step_tokens=1024, stages=(first,))
    train(0, recipe, Run(folder=tmp_path, probe_count=2))
    (tmp_path / "rendezvous").unlink(missing_ok=True)
    train(0, attrs.evolve(recipe, stages=(first, second)), Run(folder=tmp_path, probe_count=2))
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}
    assert sorted(losses) == [20, 40]
    assert losses[40] < losses[20]
    assert all(
        0 <= percent <= 100 for entry in entries if "right" in entry for percent in entry["right"].values()
    )


def test_a_stages_rate_rises_stays_and_falls_to_nothing() -> None:
    """Each stage on its own; progress is over all of them."""
    stage = Stage(mix={}, tokens=1000, rate=1.0, warm_up=100, decay_from=0.5)
    assert stage.rate_at(0.0) < stage.rate_at(0.05) < stage.rate_at(0.2) == 1.0
    assert stage.rate_at(0.75) == 0.5
    assert stage.rate_at(1.0) == 0.0
    recipe = Recipe(stages=(stage, attrs.evolve(stage, tokens=3000)))
    assert recipe.stage_at(0.1) == (stage, 0.4)
    assert recipe.stage_at(0.625) == (recipe.stages[1], 0.5)
