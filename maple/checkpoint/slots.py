"""The tensors that a Maple consists of, by the names of its Transformers model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import attrs

from maple.checkpoint.fields import MapleFields


@attrs.frozen(kw_only=True)
class Slot:
    """One tensor of the model: its name there, its dense shape, and in which compact form it may stay.

    ``fused`` names the exports' stack of several projections and the rows of this one in it.
    """

    name: str
    shape: tuple[int, ...]
    kind: Literal["dense", "ternary", "table"]
    fused: tuple[str, tuple[int, int], int] | None = None


def model_slots(config: MapleFields) -> Iterator[Slot]:
    """Every tensor of a Maple of this shape, by its name in ``MapleForCausalLM``, without ``.weight``."""
    hidden = config.hidden_size
    yield Slot(name="model.word_embeddings", shape=(config.vocab_size, hidden), kind="table")
    for i in range(config.num_hidden_layers):
        yield from _layer_slots(config, f"model.layers.{i}")
    yield Slot(name="model.norm", shape=(hidden,), kind="dense")
    yield Slot(name="lm_head", shape=(config.vocab_size, hidden), kind="table")


def _layer_slots(config: MapleFields, layer: str) -> Iterator[Slot]:
    hidden, width, experts = config.hidden_size, config.moe_intermediate_size, config.num_experts
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield Slot(name=f"{layer}.{name}", shape=(hidden,), kind="dense")
    for name in ("q_norm", "k_norm"):
        yield Slot(name=f"{layer}.self_attn.{name}", shape=(config.head_dim,), kind="dense")
    qkv, first = f"{layer}.self_attn.qkv_proj", 0
    for name, rows in (("q", queries), ("k", keys), ("v", keys)):
        fused = (qkv, (first, first + rows), queries + 2 * keys)
        yield Slot(name=f"{layer}.self_attn.{name}_proj", shape=(rows, hidden), kind="ternary", fused=fused)
        first += rows
    yield Slot(name=f"{layer}.self_attn.o_proj", shape=(hidden, queries), kind="ternary")
    yield Slot(name=f"{layer}.mlp.gate", shape=(experts, hidden), kind="dense")
    both = f"{layer}.mlp.switch_mlp.up_gate_proj"
    shape = (experts, width, hidden)
    up, gate = (both, (0, width), 2 * width), (both, (width, 2 * width), 2 * width)
    yield Slot(name=f"{layer}.mlp.experts.gate", shape=shape, kind="ternary", fused=gate)
    yield Slot(name=f"{layer}.mlp.experts.up", shape=shape, kind="ternary", fused=up)
    yield Slot(name=f"{layer}.mlp.experts.down", shape=(experts, hidden, width), kind="ternary")
