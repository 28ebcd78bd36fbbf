"""A small Maple to train: the architecture's formulas over flat batches, with the weights as the export
stores them.

The training forward computes in bf16 and the evaluation forward in float32; both use exactly the exported
weights.
"""

from __future__ import annotations

import math
from typing import cast

import attrs
import torch
from torch import Tensor, nn

from tools.sapling.batch import ROUND, Batch, Group
from tools.sapling.fused import clamped_swiglu, norm
from tools.sapling.quantise import four_bit, four_bit_head, rounded, ternary
from tools.sapling.shape import Shape


class Layer(nn.Module):
    """The latent weights of one layer; projections are ternary in the forward pass."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, inner = shape.hidden, shape.heads * shape.head_dim
        self.input_norm = nn.Parameter(torch.ones(hidden))
        self.post_norm = nn.Parameter(torch.ones(hidden))
        self.q_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.k_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.q = nn.Parameter(torch.empty(inner, hidden))
        self.k = nn.Parameter(torch.empty(shape.kv_heads * shape.head_dim, hidden))
        self.v = nn.Parameter(torch.empty(shape.kv_heads * shape.head_dim, hidden))
        self.o = nn.Parameter(torch.empty(hidden, inner))
        self.router = nn.Parameter(torch.empty(shape.experts, hidden))
        self.gate_up = nn.Parameter(torch.empty(shape.experts, 2 * shape.expert_width, hidden))
        self.down = nn.Parameter(torch.empty(shape.experts, hidden, shape.expert_width))


@attrs.frozen(kw_only=True)
class LayerWeights:
    """One layer's weights as they are stored, ready to multiply: projections in the compute dtype, the rest
    in float32.
    """

    input_norm: Tensor
    post_norm: Tensor
    q_norm: Tensor
    k_norm: Tensor
    qkv: Tensor
    o: Tensor
    router: Tensor
    gate_up: Tensor
    down: Tensor


@attrs.frozen
class Weights:
    """The whole model's stored weights.

    embedding, head: [vocabulary, hidden] of the same codes, the head's values unrounded where ``dtype`` holds them.
    """

    embedding: Tensor
    head: Tensor
    final_norm: Tensor
    layers: tuple[LayerWeights, ...]
    dtype: torch.dtype


class Sapling(nn.Module):
    """Latent weights of the whole model; the head is tied to the embeddings while training and exported as
    a copy.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.empty(shape.vocabulary, shape.hidden))
        self.final_norm = nn.Parameter(torch.ones(shape.hidden))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))

    @property
    def blocks(self) -> list[Layer]:
        """The layers, by their own type."""
        return [cast("Layer", layer) for layer in self.layers]

    def weights(self, dtype: torch.dtype) -> Weights:
        """What the export would hold now, differentiable with respect to the latent weights."""
        embedding = four_bit(self.embedding)
        unrounded = dtype == torch.float32
        return Weights(
            embedding=embedding,
            head=four_bit_head(self.embedding) if unrounded else embedding,
            final_norm=rounded(self.final_norm),
            layers=tuple(self._layer(n, dtype) for n in range(self.shape.layers)),
            dtype=dtype,
        )

    def _layer(self, index: int, dtype: torch.dtype) -> LayerWeights:
        layer = self.blocks[index]
        return LayerWeights(
            input_norm=rounded(layer.input_norm),
            post_norm=rounded(layer.post_norm),
            q_norm=rounded(layer.q_norm),
            k_norm=rounded(layer.k_norm),
            qkv=torch.cat([ternary(layer.q, dtype), ternary(layer.k, dtype), ternary(layer.v, dtype)]),
            o=ternary(layer.o, dtype),
            router=rounded(layer.router),
            gate_up=ternary(layer.gate_up, dtype),
            down=ternary(layer.down, dtype),
        )


def rotate(x: Tensor, positions: Tensor, shape: Shape) -> Tensor:
    """RoPE on the first ``rotary_dim`` of the head's dimensions, pairing i with i + rotary_dim/2; x is [n,
    heads, head_dim].
    """
    half = shape.rotary_dim // 2
    frequencies = shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[:, None, None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine, rest], -1)


def projected(
    x: Tensor, positions: Tensor, weights: LayerWeights, shape: Shape, sliding: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [n, heads, head_dim], keys and values [n, kv_heads, head_dim] of the layer's input x [n,
    hidden].
    """
    inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    normed = norm(x, weights.input_norm, shape.epsilon, weights.qkv.dtype)
    q, k, v = (
        (normed @ weights.qkv.t())
        .unflatten(-1, (-1, shape.head_dim))
        .split([inner // shape.head_dim, kv // shape.head_dim, kv // shape.head_dim], 1)
    )
    q, k = norm(q, weights.q_norm, shape.epsilon), norm(k, weights.k_norm, shape.epsilon)
    if sliding:
        q, k = rotate(q, positions, shape), rotate(k, positions, shape)
    return q.to(v.dtype), k.to(v.dtype), v


def _attended(q: Tensor, k: Tensor, v: Tensor, groups: tuple[Group, ...], window: int | None) -> Tensor:
    mixed = []
    for group in groups:
        samples, length = group.padded.shape
        index = group.padded.flatten()
        blocks = [
            part[group.start : group.end].index_select(0, index).view(samples, length, *part.shape[1:])
            for part in (q, k, v)
        ]
        out = attention(*(block.transpose(1, 2) for block in blocks), mask=causal(length, window))
        mixed.append(out.transpose(1, 2).flatten(2).flatten(0, 1).index_select(0, group.filled))
    return torch.cat(mixed)


def causal(length: int, window: int | None) -> Tensor:
    """What to add to scores [length, length]: 0 for the query itself and the ``window`` − 1 keys before it,
    else −∞.
    """
    distance = torch.arange(length)[:, None] - torch.arange(length)
    visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return torch.zeros(length, length).masked_fill(~visible, -torch.inf)


def attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor) -> Tensor:
    """Grouped-query attention: q [b, heads, m, d], k and v [b, kv_heads, n, d], mask to [b, 1, m, n].

    Written out because its backward pass in bf16 is three times as fast here as the fused one's.
    """
    samples, heads, rows, width = q.shape
    kv_heads, columns = k.shape[1], k.shape[2]
    stacked = q.reshape(samples * kv_heads, heads // kv_heads * rows, width)
    scores = torch.bmm(stacked / math.sqrt(width), k.reshape(-1, columns, width).transpose(1, 2))
    weights = (scores.view(samples, heads, rows, columns) + mask.to(scores.dtype)).softmax(-1)
    return torch.bmm(weights.view(stacked.shape[0], -1, columns), v.reshape(-1, columns, width)).view(
        samples, heads, rows, width
    )


def experts(x: Tensor, weights: LayerWeights, shape: Shape) -> tuple[Tensor, Tensor]:
    """The mixture of experts on x [n, hidden]: its output, and the balance loss (1 when the load is even)."""
    normed = norm(x, weights.post_norm, shape.epsilon)
    probabilities = (normed @ weights.router.t()).softmax(-1)
    chosen_weights, chosen = probabilities.topk(shape.active_experts, -1)
    chosen_weights = chosen_weights / (chosen_weights.sum(-1, keepdim=True) + 1e-20)
    counts = chosen.flatten().bincount(minlength=shape.experts)
    slots, sizes = _slots(chosen, counts)
    rows = slots.clamp(min=0) // shape.active_experts
    factors = chosen_weights.flatten()[slots.clamp(min=0)] * (slots >= 0)
    inner = clamped_swiglu(
        _each_expert(normed.to(weights.gate_up.dtype).index_select(0, rows), weights.gate_up, sizes),
        shape.clamp,
    )
    scaled = _each_expert(inner, weights.down, sizes).float() * factors[:, None]
    share = counts.float() / counts.sum()
    balance = shape.experts * (share * probabilities.mean(0)).sum()
    return torch.zeros_like(normed).index_add(0, rows, scaled), balance


def _slots(chosen: Tensor, counts: Tensor) -> tuple[Tensor, list[int]]:
    """Choices [n, active] in the experts' order, and how many each expert gets; −1 fills up to a multiple
    of ``ROUND``.

    Few different sizes matter: the bf16 matrix product compiles itself anew for each one that it has not met.
    """
    order = chosen.flatten().argsort(stable=True)
    sizes = (counts + ROUND - 1) // ROUND * ROUND
    shift = (sizes.cumsum(0) - sizes) - (counts.cumsum(0) - counts)
    slots = torch.full((int(sizes.sum()),), -1)
    slots[torch.arange(len(order)) + shift[chosen.flatten()[order]]] = order
    return slots, sizes.tolist()


def _each_expert(x: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
    return torch.cat([part @ weight[expert].t() for expert, part in enumerate(x.split(sizes))])


@attrs.frozen
class States:
    """What the forward pass found: final hidden states [wanted, hidden] after the last norm, the residual stream
    [hints, hidden] that the last two layers get at the hints' positions, and the mean balance loss.
    """

    final: Tensor
    tapped: tuple[Tensor, Tensor]
    balance: Tensor


def hidden_states(weights: Weights, batch: Batch, shape: Shape, wanted: Tensor) -> States:
    """The forward pass; ``wanted`` are the flat positions whose final state is needed."""
    x = weights.embedding[batch.ids]
    balances, tapped = [], []
    for index, layer in enumerate(weights.layers):
        q, k, v = projected(x, batch.positions, layer, shape, shape.is_sliding(index))
        mixed = _attended(q, k, v, batch.groups, shape.window if shape.is_sliding(index) else None)
        if index >= shape.layers - 2:
            tapped.append(x[batch.hints.positions])
        if index == shape.layers - 1:
            mixed, x = mixed[wanted], x[wanted]
        x = x + (mixed @ layer.o.t()).float()
        out, balance = experts(x, layer, shape)
        x = x + out
        balances.append(balance)
    return States(
        norm(x, weights.final_norm, shape.epsilon), (tapped[0], tapped[1]), torch.stack(balances).mean()
    )


def logits(weights: Weights, hidden: Tensor) -> Tensor:
    """Float32 logits of hidden states [n, hidden]."""
    return (hidden.to(weights.dtype) @ weights.head.to(weights.dtype).t()).float()
