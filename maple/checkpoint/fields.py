"""The fields of config.json and what makes them a Maple's; needs neither torch nor Transformers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

MODEL_TYPE = "maple"
FULL = "full_attention"
SLIDING = "sliding_attention"

_SIZES = (
    "hidden_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "num_experts_per_tok",
    "max_position_embeddings",
    "vocab_size",
    "sliding_window",
)

# Variants that a config could ask for and that no Maple has: computing on as if they were would be wrong.
_FIXED: Mapping[str, object] = {
    "hidden_act": "silu",
    "first_k_dense_replace": 0,
    "use_qk_norm": True,
    "use_bias": False,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "nope_on_global_attention": True,
}


def fits(value: Any, *kinds: type, low: float, high: float = sys.float_info.max) -> bool:
    """Whether a value from JSON is a number of one of the kinds (true is none) from ``low`` to ``high``."""
    return type(value) in kinds and low <= value <= high


class MapleFields(Protocol):
    """What every form of the config has: attributes by config.json's names."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    swiglu_limit: float
    rms_norm_eps: float
    rope_theta: float
    partial_rotary_factor: float
    max_position_embeddings: int
    sliding_window: int
    layer_types: list[str]
    pad_token_id: int | None
    eos_token_id: int | list[int] | None

    @property
    def rotary_dim(self) -> int:
        """How many leading dims of a head RoPE turns on sliding layers."""
        ...


@attrs.define(kw_only=True)
class PlainConfig:
    """The config as it is, for who needs no Transformers model; made by ``of`` alone."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_experts: int
    num_experts_per_tok: int
    rms_norm_eps: float
    max_position_embeddings: int
    sliding_window: int
    layer_types: list[str]
    eos_token_id: int | list[int] | None
    swiglu_limit: float = 7.0
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.5
    hidden_act: str = "silu"
    first_k_dense_replace: int = 0
    use_qk_norm: bool = True
    use_bias: bool = False
    tie_word_embeddings: bool = False
    norm_topk_prob: bool = True
    nope_on_global_attention: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> PlainConfig:
        """From a config.json that has the required fields; ValueError names a value that is no Maple's."""
        known = {field.name for field in attrs.fields(cls)}
        config = cls(**{name: value for name, value in content.items() if name in known})
        settle(config, content.get("rope_parameters"), content.get("rope_scaling"))
        return config

    @property
    def rotary_dim(self) -> int:
        """How many leading dims of a head RoPE turns on sliding layers."""
        return int(self.head_dim * self.partial_rotary_factor)


def settle(config: MapleFields, rope_parameters: object, rope_scaling: object) -> None:
    """Take the RoPE values from either spelling, fill in ``layer_types``, and check every value.

    Raises ``ValueError`` with one line that names the field for any value that is not a Maple's.
    """
    _read_rope(config, rope_parameters, rope_scaling)
    _check_values(config)
    _check_tokens(config)
    if not config.layer_types:
        config.layer_types = [FULL if i % 4 == 3 else SLIDING for i in range(config.num_hidden_layers)]
    _check_shape(config)


def _read_rope(config: MapleFields, parameters: object, scaling: object) -> None:
    """Accept the newer spelling, one dict, beside the published flat fields; any scaling is refused."""
    for name, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if value is None:
            continue
        if not isinstance(value, dict) or value.get("rope_type", "default") != "default":
            raise ValueError(f"{name} asks for a scaled RoPE, which Maple does not have")
        config.rope_theta = value.get("rope_theta", config.rope_theta)
        config.partial_rotary_factor = value.get("partial_rotary_factor", config.partial_rotary_factor)


def _check_values(config: MapleFields) -> None:
    for name in _SIZES:
        value = getattr(config, name)
        if not fits(value, int, low=1):
            raise ValueError(f"{name} must be a positive integer, not {value!r}")
    for name in ("rms_norm_eps", "rope_theta", "partial_rotary_factor", "swiglu_limit"):
        value = getattr(config, name)
        if not fits(value, int, float, low=math.ulp(0.0)):
            raise ValueError(f"{name} must be a positive number, not {value!r}")
    for name, expected in _FIXED.items():
        if getattr(config, name) != expected:
            raise ValueError(f"{name} must be {expected!r}, as in every Maple, not {getattr(config, name)!r}")


def _check_tokens(config: MapleFields) -> None:
    for name in ("eos_token_id", "pad_token_id", "bos_token_id"):
        value = getattr(config, name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token in ids:
            if not fits(token, int, low=0, high=config.vocab_size - 1):
                raise ValueError(f"{name} must be a token id below {config.vocab_size}, not {token!r}")


def _check_shape(config: MapleFields) -> None:
    types: object = config.layer_types
    if not isinstance(types, list) or any(kind not in (FULL, SLIDING) for kind in types):
        raise ValueError(f"layer_types must be a list of {FULL!r} and {SLIDING!r}")
    if len(types) != config.num_hidden_layers:
        raise ValueError(f"layer_types has {len(types)} entries for {config.num_hidden_layers} layers")
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
    if config.num_experts_per_tok > config.num_experts:
        raise ValueError("num_experts_per_tok must not be larger than num_experts")
    if config.partial_rotary_factor > 1 or config.rotary_dim < 2 or config.rotary_dim % 2:
        raise ValueError("partial_rotary_factor must turn an even number of each head's dims")
    for name in ("hidden_size", "moe_intermediate_size", "head_dim"):
        if getattr(config, name) % 4:
            raise ValueError(f"{name} must be a multiple of 4, the weights of one packed byte")
