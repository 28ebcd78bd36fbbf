"""An export read back as the weights of the evaluation forward, straight from the stored codes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from tools.sapling.model import LayerWeights, Weights
from tools.sapling.quantise import embedding_values, head_values
from tools.sapling.shape import Shape


def shape_of(folder: Path) -> Shape:
    """The dimensions that config.json states."""
    config = json.loads((folder / "config.json").read_text())
    return Shape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        rotary_dim=int(config["head_dim"] * config["partial_rotary_factor"]),
        window=config["sliding_window"],
        experts=config["num_experts"],
        active_experts=config["num_experts_per_tok"],
        expert_width=config["moe_intermediate_size"],
        rope_theta=config["rope_theta"],
        epsilon=config["rms_norm_eps"],
        context=config["max_position_embeddings"],
    )


def stored_weights(folder: Path) -> Weights:
    """Float32 weights of the export in ``folder``. Raises ValueError when head and embeddings differ (they
    are trained as one).
    """
    shape = shape_of(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        named: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    embedding, head = (_affine(named, name) for name in ("model.word_embeddings", "lm_head"))
    if not all(map(torch.equal, embedding, head)):
        raise ValueError("the head is not a copy of the embeddings")
    layers = tuple(_layer(named, f"model.layers.{index}") for index in range(shape.layers))
    return Weights(
        embedding=embedding_values(*embedding),
        head=head_values(*head),
        final_norm=named["model.norm.weight"].float(),
        layers=layers,
        dtype=torch.float32,
    )


def unpacked(words: Tensor, bits: int) -> Tensor:
    """The codes (int64) in uint32 words [..., n], least significant first: [..., n · 32 / bits]."""
    shifts = bits * torch.arange(32 // bits)
    codes: Tensor = (words.to(torch.int64)[..., None] >> shifts) & (2**bits - 1)
    return codes.flatten(-2)


def _affine(named: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [rows, groups, 64], scales and biases [rows, groups, 1]."""
    codes = (
        unpacked(named[f"{name}.weight"], 4).float().unflatten(-1, (named[f"{name}.scales"].shape[-1], -1))
    )
    return codes, named[f"{name}.scales"][..., None], named[f"{name}.biases"][..., None]


def _ternary(named: dict[str, Tensor], name: str) -> Tensor:
    codes = unpacked(named[f"{name}.weight"], 2).float() - 1
    return codes * named[f"{name}.row_alpha"].float()[..., None]


def _layer(named: dict[str, Tensor], prefix: str) -> LayerWeights:
    attention, experts = f"{prefix}.self_attn", f"{prefix}.mlp.switch_mlp"
    return LayerWeights(
        input_norm=named[f"{prefix}.input_layernorm.weight"].float(),
        post_norm=named[f"{prefix}.post_attention_layernorm.weight"].float(),
        q_norm=named[f"{attention}.q_norm.weight"].float(),
        k_norm=named[f"{attention}.k_norm.weight"].float(),
        qkv=torch.cat([_ternary(named, f"{attention}.{projection}_proj") for projection in "qkv"]),
        o=_ternary(named, f"{attention}.o_proj"),
        router=named[f"{prefix}.mlp.gate.weight"].float(),
        gate_up=torch.cat(
            [_ternary(named, f"{experts}.{projection}_proj") for projection in ("gate", "up")], 1
        ),
        down=_ternary(named, f"{experts}.down_proj"),
    )
