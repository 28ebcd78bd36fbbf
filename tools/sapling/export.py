"""Export to the 2-bit spelling: ternary words with ``row_alpha``, embeddings and head affine 4-bit,
everything else bf16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tools.sapling.model import Layer, Sapling
from tools.sapling.quantise import embedding_codes, ternary_codes

GENERATION = {
    "do_sample": True,
    "temperature": 0.0,
    "top_p": 1.0,
    "eos_token_id": [2, 0],
    "pad_token_id": 0,
}


def packed(codes: Tensor, bits: int) -> Tensor:
    """Unsigned codes [..., n] as uint32 words [..., n · bits / 32], least significant code first."""
    per_word = 32 // bits
    words: Tensor = codes.to(torch.int64).unflatten(-1, (-1, per_word)) << (bits * torch.arange(per_word))
    return words.sum(-1).to(torch.uint32)


def tensors(model: Sapling) -> dict[str, Tensor]:
    """The named tensors of the export."""
    named: dict[str, Tensor] = {"model.norm.weight": model.final_norm.detach().bfloat16()}
    for name in ("model.word_embeddings", "lm_head"):
        named |= _affine(name, model.embedding.detach())
    for index, layer in enumerate(model.blocks):
        named |= _layer(f"model.layers.{index}", layer, model.shape.expert_width)
    return {name: tensor.contiguous() for name, tensor in named.items()}


def _layer(prefix: str, layer: Layer, width: int) -> dict[str, Tensor]:
    attention, experts = f"{prefix}.self_attn", f"{prefix}.mlp.switch_mlp"
    named = {
        f"{prefix}.input_layernorm.weight": layer.input_norm.detach().bfloat16(),
        f"{prefix}.post_attention_layernorm.weight": layer.post_norm.detach().bfloat16(),
        f"{attention}.q_norm.weight": layer.q_norm.detach().bfloat16(),
        f"{attention}.k_norm.weight": layer.k_norm.detach().bfloat16(),
        f"{prefix}.mlp.gate.weight": layer.router.detach().bfloat16(),
    }
    for projection in ("q", "k", "v", "o"):
        named |= _ternary(f"{attention}.{projection}_proj", getattr(layer, projection).detach())
    gate, up = layer.gate_up.detach().split(width, 1)
    for projection, weight in (("gate", gate), ("up", up), ("down", layer.down.detach())):
        named |= _ternary(f"{experts}.{projection}_proj", weight)
    return named


def _ternary(name: str, weight: Tensor) -> dict[str, Tensor]:
    codes, alpha = ternary_codes(weight)
    return {f"{name}.weight": packed(codes + 1, 2), f"{name}.row_alpha": alpha.squeeze(-1).bfloat16()}


def _affine(name: str, weight: Tensor) -> dict[str, Tensor]:
    codes, scale, bias = embedding_codes(weight)
    return {
        f"{name}.weight": packed(codes.flatten(-2), 4),
        f"{name}.scales": scale.squeeze(-1).bfloat16(),
        f"{name}.biases": bias.squeeze(-1).bfloat16(),
    }


def export(model: Sapling, folder: Path) -> None:
    """Writes model.safetensors, config.json and generation_config.json (the tokenizer's files are copied by
    the caller).
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "model.safetensors"
    save_file(tensors(model), weights, metadata={"format": "mlx"})
    weights.chmod(0o644)  # it is written for its owner alone, but goes into a package
    _write(folder / "config.json", model.shape.config())
    _write(folder / "generation_config.json", GENERATION)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
