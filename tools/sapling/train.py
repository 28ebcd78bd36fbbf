"""Training: a few single-threaded processes that average their gradients, a schedule by tokens or by the
clock, checkpoints.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from tools.sapling.batch import NOT_LEARNT, Batch, make_batch
from tools.sapling.heldout import KINDS, heldout
from tools.sapling.hints import Probes
from tools.sapling.model import Sapling, States, Weights, hidden_states, logits
from tools.sapling.recipe import Recipe
from tools.sapling.samples import encoded, step_samples
from tools.sapling.seeding import seed
from tools.sapling.tokenizer import markers, word_pieces
from tools.sapling.words import Draws


@attrs.frozen(kw_only=True)
class Run:
    """Where a run keeps its files and when it ends: after the recipe's tokens or, if given, at a time
    (seconds since 1970).
    """

    folder: Path
    until: float | None = None
    checkpoint_seconds: float = 240.0
    probe_seconds: float = 400.0
    probe_count: int = 24


@attrs.define
class _State:
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def train(rank: int, recipe: Recipe, run: Run) -> None:
    """The loop of one process; rank 0 writes the log, the checkpoints and the held-out probes. Resumes from
    ``last.pt``.
    """
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group(
        "gloo", init_method=f"file://{run.folder}/rendezvous", rank=rank, world_size=recipe.processes
    )
    tokenizer = Tokenizer.from_file(str(run.folder / "tokenizer.json"))
    pieces, marks = word_pieces(tokenizer), markers(tokenizer)
    model = Sapling(recipe.shape)
    seed(model, torch.Generator().manual_seed(recipe.seed), recipe.seeding)
    probes = Probes(recipe.shape.hidden)
    optimiser = torch.optim.AdamW(
        [*model.parameters(), *probes.parameters()],
        lr=recipe.stages[0].rate,
        betas=(0.9, 0.98),
        weight_decay=0.0,
        fused=True,
    )
    state = _resumed(run, model, probes, optimiser)
    started, before = time.time(), state.seconds
    origin = started - before
    saved = probed = started
    average = 0.0
    while True:
        progress = _shared_progress(rank, recipe, run, state, origin)
        if progress >= 1.0:
            break
        stage, done = recipe.stage_at(progress)
        rate = stage.rate_at(done)
        for group in optimiser.param_groups:
            group["lr"] = rate
        rng = Draws(f"{recipe.seed} {state.step} {rank}", recipe.variety, pieces)
        samples = step_samples(tokenizer, rng, stage.mix, recipe.step_tokens)
        loss, hinted = _step(model, probes, optimiser, recipe, make_batch(samples, markers=marks))
        state.step += 1
        state.tokens += recipe.step_tokens * recipe.processes
        state.seconds = time.time() - origin
        average = loss if not average else 0.95 * average + 0.05 * loss
        now = time.time()
        if rank == 0 and state.step % 20 == 0:
            _log(
                run,
                {
                    "step": state.step,
                    "tokens": state.tokens,
                    "seconds": round(state.seconds, 1),
                    "loss": round(average, 4),
                    "hints": round(hinted, 4),
                    "rate": rate,
                },
            )
        if rank == 0 and now - saved > run.checkpoint_seconds:
            save_checkpoint(run.folder / "last.pt", model, probes, optimiser, state)
            saved = now
        if rank == 0 and now - probed > run.probe_seconds:
            _log(
                run,
                {
                    "step": state.step,
                    "tokens": state.tokens,
                    "seconds": round(state.seconds, 1),
                    "right": probe(model, tokenizer, run.probe_count),
                },
            )
            probed = time.time()
    if rank == 0:
        save_checkpoint(run.folder / "last.pt", model, probes, optimiser, state)
        _log(
            run,
            {
                "step": state.step,
                "tokens": state.tokens,
                "seconds": round(state.seconds, 1),
                "right": probe(model, tokenizer, 4 * run.probe_count),
            },
        )
    dist.barrier()
    dist.destroy_process_group()


def _shared_progress(rank: int, recipe: Recipe, run: Run, state: _State, origin: float) -> float:
    if run.until is None:
        return state.tokens / recipe.tokens
    progress = torch.tensor([(time.time() - origin) / (run.until - origin)])
    dist.broadcast(progress, 0)
    return float(progress)


def _step(
    model: Sapling,
    probes: Probes,
    optimiser: torch.optim.Optimizer,
    recipe: Recipe,
    batch: Batch,
) -> tuple[float, float]:
    """Learns one batch; the losses of the answers and of the hints."""
    weights = model.weights(torch.bfloat16)
    states = hidden_states(weights, batch, model.shape, batch.learnt)
    loss = answer_loss(weights, states, batch)
    optimiser.zero_grad()
    hinted = probes(states.tapped, weights.embedding, batch.hints, recipe.named)
    (loss + recipe.balance * states.balance + recipe.hints * hinted.log1p()).backward()
    learnt = [*model.parameters(), *probes.parameters()]
    _average_gradients(learnt, recipe.processes)
    nn.utils.clip_grad_norm_(learnt, recipe.clip, foreach=True)
    optimiser.step()
    return float(loss.detach()), float(hinted.detach())


def answer_loss(weights: Weights, states: States, batch: Batch) -> Tensor:
    """Mean cross-entropy of the learnt tokens."""
    return functional.cross_entropy(logits(weights, states.final), batch.targets, ignore_index=NOT_LEARNT)


def _average_gradients(learnt: list[nn.Parameter], processes: int) -> None:
    if processes == 1:
        return
    gradients = [weight.grad for weight in learnt if weight.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= processes
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def probe(model: Sapling, tokenizer: Tokenizer, count: int, *, thinking: bool = True) -> dict[str, float]:
    """Per kind, the percentage of held-out replies whose every token is the most likely one: greedy
    decoding gives them exactly.
    """
    with torch.no_grad():
        weights = model.weights(torch.float32)
        return {kind: _right(weights, model, tokenizer, kind, count, thinking) for kind in KINDS}


def _right(
    weights: Weights, model: Sapling, tokenizer: Tokenizer, kind: str, count: int, thinking: bool
) -> float:
    samples = [encoded(tokenizer, talk) for talk in heldout(kind, count, thinking=thinking)]
    batch = make_batch(samples)
    final = hidden_states(weights, batch, model.shape, batch.learnt).final
    wrong = (logits(weights, final).argmax(-1) != batch.targets) & (batch.targets != NOT_LEARNT)
    owner = (batch.positions == 0).cumsum(0)[batch.learnt]
    return round(100.0 * (1 - len(owner[wrong].unique()) / count), 1)


def save_checkpoint(
    path: Path, model: Sapling, probes: Probes, optimiser: torch.optim.Optimizer, state: Any
) -> None:
    """Writes through a temporary file, so that an interrupted write loses nothing."""
    content = {
        "model": model.state_dict(),
        "probes": probes.state_dict(),
        "optimiser": optimiser.state_dict(),
        "state": attrs.asdict(state),
    }
    torch.save(content, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def _resumed(run: Run, model: Sapling, probes: Probes, optimiser: torch.optim.Optimizer) -> _State:
    path = run.folder / "last.pt"
    if not path.exists():
        return _State()
    content = torch.load(path, weights_only=True)
    model.load_state_dict(content["model"])
    probes.load_state_dict(content["probes"])
    optimiser.load_state_dict(content["optimiser"])
    return _State(**content["state"])


def _log(run: Run, entry: dict[str, Any]) -> None:
    with (run.folder / "log.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")
