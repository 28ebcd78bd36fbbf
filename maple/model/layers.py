"""Maple's layers up to and including attention, and its output head.

Where a step says fp32, the trained forward pass computes it so; each is rounded once to the activations'
dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from maple.model.configuration import SLIDING, MapleConfig

__all__ = ["MapleAttention", "MapleHead", "MapleRMSNorm", "RotaryTables", "add_residual", "rotary_tables"]

_HEAD_BLOCK = 512  # rows of the head converted to fp32 at a time, so that the scratch stays in cache

RotaryTables = tuple[torch.Tensor, torch.Tensor]


class MapleRMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, all of it in fp32, rounded once."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise [..., size]; the dtype is kept."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight.float()).to(x.dtype)


def add_residual(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum in fp32, rounded once to the dtype of x."""
    return (x.float() + y.float()).to(x.dtype)


def rotary_tables(config: MapleConfig, position_ids: torch.Tensor) -> RotaryTables:
    """Cosines and sines, fp32 [batch, 1, tokens, rotary_dim / 2], of position * theta^(-2i / rotary_dim)."""
    half = config.rotary_dim // 2
    exponent = torch.arange(half, dtype=torch.float32, device=position_ids.device) / half
    angles = position_ids[:, None, :, None].float() * config.rope_theta**-exponent
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, tables: RotaryTables) -> torch.Tensor:
    """Turn dims (i, i + rotary_dim / 2) of [batch, heads, tokens, head_dim]; later dims pass unchanged."""
    cos, sin = tables
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat(((a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest), dim=-1)


class MapleAttention(nn.Module):
    """Grouped-query attention with QK norm; RoPE and a window on sliding layers, neither on full ones."""

    def __init__(self, config: MapleConfig, layer_idx: int) -> None:
        super().__init__()
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = dim
        self.num_key_value_groups = heads // kv_heads
        self.scaling = dim**-0.5
        self.is_causal = True
        self.sliding_window = config.sliding_window if config.layer_types[layer_idx] == SLIDING else None
        self.q_proj: nn.Module = nn.Linear(config.hidden_size, heads * dim, bias=False)
        self.k_proj: nn.Module = nn.Linear(config.hidden_size, kv_heads * dim, bias=False)
        self.v_proj: nn.Module = nn.Linear(config.hidden_size, kv_heads * dim, bias=False)
        self.o_proj: nn.Module = nn.Linear(heads * dim, config.hidden_size, bias=False)
        self.q_norm = MapleRMSNorm(dim, config.rms_norm_eps)
        self.k_norm = MapleRMSNorm(dim, config.rms_norm_eps)

    def forward(
        self,
        x: torch.Tensor,
        rotary: RotaryTables,
        mask: torch.Tensor | None,
        cache: Cache | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[batch, tokens, hidden] to the same shape; appends this layer's keys and values to `cache`."""
        heads = (*x.shape[:-1], -1, self.head_dim)
        q = self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        if self.sliding_window is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        out, _ = attend(
            self, q, k, v, mask, scaling=self.scaling, sliding_window=self.sliding_window, **kwargs
        )
        projected: torch.Tensor = self.o_proj(out.reshape(*x.shape[:-1], -1))
        return projected


def eager_attention(
    module: MapleAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention spelled out, softmax in fp32: [batch, tokens, heads, head_dim] and the weights."""
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


class MapleHead(nn.Module):
    """The untied output matrix; logits are fp32 whatever dtype the weights are stored in."""

    def __init__(self, config: MapleConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] to fp32 [..., vocabulary]."""
        if self.weight.dtype == torch.float32 or torch.is_grad_enabled():
            return nn.functional.linear(x.float(), self.weight.float())
        # A converted copy of the whole matrix would cost more memory than the matrix itself.
        wide = x.float()
        out = torch.empty((*x.shape[:-1], self.weight.shape[0]), dtype=torch.float32, device=x.device)
        scratch = torch.empty((_HEAD_BLOCK, x.shape[-1]), dtype=torch.float32, device=x.device)
        for rows, logits in zip(self.weight.split(_HEAD_BLOCK), out.split(_HEAD_BLOCK, dim=-1), strict=True):
            logits.copy_(nn.functional.linear(wide, scratch[: rows.shape[0]].copy_(rows)))
        return out
