"""Greedy decoding of many prompts at once, with a padded KV cache, by the training forward's formulas."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from tools.sapling.fused import norm
from tools.sapling.model import LayerWeights, Weights, attention, experts, logits, projected
from tools.sapling.shape import Shape


@attrs.define
class _Cache:
    """Keys and values [prompts, capacity, kv_heads, head_dim] of every layer; entry t of a prompt is its
    position t.
    """

    keys: list[Tensor]
    values: list[Tensor]


def greedy(
    weights: Weights, shape: Shape, prompts: list[list[int]], limit: int, stop: int
) -> list[list[int]]:
    """The continuation of each prompt up to and without ``stop``, at most ``limit`` ids."""
    with torch.no_grad():
        return _greedy(weights, shape, prompts, limit, stop)


def _greedy(
    weights: Weights, shape: Shape, prompts: list[list[int]], limit: int, stop: int
) -> list[list[int]]:
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    cache = _empty(weights, shape, len(prompts), int(lengths.max()) + limit)
    rows = torch.arange(len(prompts)).repeat_interleave(lengths)
    positions = torch.cat([torch.arange(int(length)) for length in lengths])
    ids = torch.tensor([token for prompt in prompts for token in prompt])
    last = lengths.cumsum(0) - 1
    chosen = _advance(weights, shape, cache, ids, rows, positions, last).argmax(-1)
    replies: list[list[int]] = [[] for _ in prompts]
    alive = torch.arange(len(prompts))
    for done in range(limit):
        alive = alive[chosen != stop]
        chosen = chosen[chosen != stop]
        for row, token in zip(alive.tolist(), chosen.tolist(), strict=True):
            replies[row].append(token)
        if not len(alive) or done == limit - 1:
            break
        everything = torch.arange(len(alive))
        chosen = _advance(weights, shape, cache, chosen, alive, lengths[alive] + done, everything).argmax(-1)
    return replies


def _empty(weights: Weights, shape: Shape, prompts: int, capacity: int) -> _Cache:
    size = (prompts, capacity, shape.kv_heads, shape.head_dim)
    return _Cache(*([torch.zeros(size, dtype=weights.dtype) for _ in weights.layers] for _ in range(2)))


def _advance(
    weights: Weights,
    shape: Shape,
    cache: _Cache,
    ids: Tensor,
    rows: Tensor,
    positions: Tensor,
    wanted: Tensor,
) -> Tensor:
    """Runs new tokens (any number per prompt) through the model; logits of the ``wanted`` ones."""
    x = weights.embedding[ids]
    for index, layer in enumerate(weights.layers):
        q, k, v = projected(x, positions, layer, shape, shape.is_sliding(index))
        cache.keys[index][rows, positions] = k
        cache.values[index][rows, positions] = v
        window = shape.window if shape.is_sliding(index) else None
        x = x + _mixed(cache, index, layer, q, rows, positions, window)
        x = x + experts(x, layer, shape)[0]
    return logits(weights, norm(x[wanted], weights.final_norm, shape.epsilon))


def _mixed(
    cache: _Cache,
    index: int,
    layer: LayerWeights,
    q: Tensor,
    rows: Tensor,
    positions: Tensor,
    window: int | None,
) -> Tensor:
    end = int(positions.max()) + 1
    columns = torch.arange(end)
    outputs = torch.empty(len(q), q.shape[1] * q.shape[2], dtype=q.dtype)
    for part in torch.arange(len(q)).split(256):
        distance = positions[part, None] - columns
        visible = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
        mask = torch.zeros(len(part), 1, 1, end).masked_fill(~visible[:, None, None, :], -torch.inf)
        keys, values = (kept[index][rows[part], :end].transpose(1, 2) for kept in (cache.keys, cache.values))
        outputs[part] = attention(q[part][:, :, None], keys, values, mask=mask)[:, :, 0].flatten(1)
    return (outputs @ layer.o.t()).float()
