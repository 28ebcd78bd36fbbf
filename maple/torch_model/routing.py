"""Which experts a token goes to, and how their answers are put together again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from maple.torch_model.configuration import MapleConfig


class MapleRouter(nn.Module):
    """Softmax over all experts, then the best k of them, renormalised; all in fp32."""

    def __init__(self, config: MapleConfig) -> None:
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, hidden] to expert ids [tokens, k] and their weights, fp32 [tokens, k]."""
        scores = nn.functional.linear(x.float(), self.weight.float()).softmax(-1)
        weights, experts = scores.topk(self.top_k, dim=-1)
        return experts, weights / (weights.sum(-1, keepdim=True) + 1e-20)


def clamped_swiglu(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit) in fp32, rounded once."""
    wide = nn.functional.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    return wide.to(gate.dtype)


def sum_of_experts(
    run: Callable[[int, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Weighted sum of ``run(expert, rows of x)`` over each token's experts, in fp32, rounded once.

    Tokens are grouped by expert, so that an expert's weights are read once however many tokens chose it.
    Every token adds its experts in ascending order, whatever its neighbours are.
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    chosen, order = experts.flatten().sort(stable=True)
    ids, counts = chosen.unique_consecutive(return_counts=True)
    start = 0
    for expert, count in zip(ids.tolist(), counts.tolist(), strict=True):
        slots = order[start : start + count]
        tokens = slots // experts.shape[1]
        out = run(expert, x[tokens]).float() * weights.flatten()[slots, None]
        total.index_add_(0, tokens, out)
        start += count
    return total.to(x.dtype)
