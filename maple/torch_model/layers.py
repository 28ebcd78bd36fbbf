"""Maple's layers up to and including attention, and its output head.

Activations are fp32 whatever dtype the weights have: a router that chooses between near ties takes another
expert for an error of a thousandth, and then the whole layer's answer is another one. Of 16-bit models only
the keys and values, and what an accelerator's attention reads, are 16 bits wide, in half precision: it takes
the memory of bfloat16 and errs by an eighth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from maple.checkpoint.fields import SLIDING
from maple.torch_model.configuration import MapleConfig

# Rows of a matrix converted to fp32 at a time: on the CPU the scratch has to stay in cache, elsewhere every
# block costs three launches.
_CPU_BLOCK = 512
_DEVICE_BLOCK = 2048

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


def kv_dtype(weights: torch.dtype) -> torch.dtype:
    """What keys and values are kept in beside weights of that dtype: float16 beside 16-bit ones, or fp32."""
    return torch.float16 if weights.itemsize == torch.float16.itemsize else torch.float32


def narrowed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` rounded to ``dtype``; what lies beyond its range becomes its largest number, not infinity."""
    if x.dtype == dtype:
        return x
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype)


def wide_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x [..., in]`` times ``weight [out, in]``, transposed, in fp32 whatever dtype either has.

    Without gradients a 16-bit matrix is widened block by block: a copy of all of it would take more memory
    than the matrix itself.
    """
    wide = x.float()
    if weight.dtype == torch.float32 or torch.is_grad_enabled():
        return nn.functional.linear(wide, weight.float())
    out = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=torch.float32, device=x.device)
    block = min(weight.shape[0], _CPU_BLOCK if x.device.type == "cpu" else _DEVICE_BLOCK)
    scratch = torch.empty((block, x.shape[-1]), dtype=torch.float32, device=x.device)
    for rows, part in zip(weight.split(block), out.split(block, dim=-1), strict=True):
        part.copy_(nn.functional.linear(wide, scratch[: rows.shape[0]].copy_(rows)))
    return out


class MapleLinear(nn.Linear):
    """A bias-free linear layer whose product is fp32 whatever dtype the weights have."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width] to fp32 [..., out]."""
        return wide_linear(x, self.weight)


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
        self.q_proj: nn.Module = MapleLinear(config.hidden_size, heads * dim)
        self.k_proj: nn.Module = MapleLinear(config.hidden_size, kv_heads * dim)
        self.v_proj: nn.Module = MapleLinear(config.hidden_size, kv_heads * dim)
        self.o_proj: nn.Module = MapleLinear(heads * dim, config.hidden_size)
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
        """Fp32 [batch, tokens, hidden] to the same; appends this layer's keys and values to ``cache``."""
        heads = (*x.shape[:-1], -1, self.head_dim)
        q = self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2)
        v = self.v_proj(x).view(heads).transpose(1, 2)
        if self.sliding_window is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        k, v = (narrowed(states, kv_dtype(self.k_norm.weight.dtype)) for states in (k, v))
        if cache is not None:
            k, v = cache.update(k, v, self.layer_idx)
        if x.device.type == "cpu":
            # In 16 bits its attention takes many times as long, and says less.
            k, v = k.float(), v.float()
        q = narrowed(q, k.dtype)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        out, _ = attend(
            self, q, k, v, mask, scaling=self.scaling, sliding_window=self.sliding_window, **kwargs
        )
        projected: torch.Tensor = self.o_proj(out.reshape(*x.shape[:-1], -1).float())
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
    """Attention spelled out, scores and softmax in fp32: [batch, tokens, heads, head_dim] and the weights."""
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = query.float() @ key.float().transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


class MapleHead(nn.Module):
    """The untied output matrix."""

    def __init__(self, config: MapleConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] to fp32 [..., vocabulary]."""
        return wide_linear(x, self.weight)
