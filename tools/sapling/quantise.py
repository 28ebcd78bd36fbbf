"""What the export stores, as straight-through functions: the forward pass uses stored values, the gradient
ignores the rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

EMBEDDING_GROUP = 64


def ternary_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes −1, 0, +1 (float) and one bf16-exact scale a row [..., 1] for weights [..., rows, columns].

    A weight counts when it exceeds 0.7 times the row's mean magnitude; the scale is the mean of those that
    count.
    """
    magnitude = weight.abs()
    kept = magnitude > 0.7 * magnitude.mean(-1, keepdim=True)
    total = (magnitude * kept).sum(-1, keepdim=True)
    alpha = (total / kept.sum(-1, keepdim=True).clamp(min=1)).bfloat16().float()
    return weight.sign() * kept, alpha


def embedding_codes(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0 to 15 [rows, groups, 64] with bf16-exact scales and biases [rows, groups, 1]."""
    grouped = weight.unflatten(-1, (-1, EMBEDDING_GROUP))
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-8).bfloat16().float()
    bias = low.bfloat16().float()
    return ((grouped - bias) / scale).round().clamp(0, 15), scale, bias


def embedding_values(codes: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """scale · code + bias in float32 [rows, columns]; product and sum are each rounded to bf16, as MLX
    defines the format.
    """
    return (codes.bfloat16() * scale.bfloat16() + bias.bfloat16()).float().flatten(-2)


def head_values(codes: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """scale · code + bias in float32 [rows, columns], unrounded, as the server multiplies by a 4-bit head."""
    return (codes.float() * scale.float() + bias.float()).flatten(-2)


class _Ternary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
        codes, alpha = ternary_codes(weight)
        return (codes * alpha).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].float(), None


class _FourBit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, values: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        return values(*embedding_codes(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.bfloat16().float()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def ternary(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The ternary value of each row, in ``dtype`` (exact in bf16 and float32)."""
    return _Ternary.apply(weight, dtype)  # type: ignore[no-any-return, no-untyped-call]


def four_bit(weight: Tensor) -> Tensor:
    """The affine 4-bit value in float32, rounded to bf16 as embeddings are."""
    return _FourBit.apply(weight, embedding_values)  # type: ignore[no-any-return, no-untyped-call]


def four_bit_head(weight: Tensor) -> Tensor:
    """The affine 4-bit value in float32, unrounded as in a head."""
    return _FourBit.apply(weight, head_values)  # type: ignore[no-any-return, no-untyped-call]


def rounded(weight: Tensor) -> Tensor:
    """The bf16 value in float32, for norms and routers."""
    return _Rounded.apply(weight)  # type: ignore[no-any-return, no-untyped-call]
