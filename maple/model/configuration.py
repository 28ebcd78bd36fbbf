"""MapleConfig: the fields of Maple's config.json, checked on the way in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from transformers import PreTrainedConfig

__all__ = ["FULL", "SLIDING", "MapleConfig"]

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


class MapleConfig(PreTrainedConfig):  # type: ignore[misc] # untyped base
    """Shape and constants of a Maple; the defaults are Maple-Preview's own.

    Empty `layer_types` mean its pattern, every fourth layer full.

    Raises `ValueError` with one line that names the field for any value that is not a Maple.
    """

    model_type: ClassVar[str] = "maple"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache"]

    vocab_size: int = 151936
    hidden_size: int = 2048
    moe_intermediate_size: int = 512
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 128
    num_experts: int = 256
    num_experts_per_tok: int = 8
    swiglu_limit: float = 7.0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.5
    max_position_embeddings: int = 131072
    sliding_window: int = 512
    layer_types: list[str] = dataclasses.field(default_factory=list)
    hidden_act: str = "silu"
    first_k_dense_replace: int = 0
    use_qk_norm: bool = True
    use_bias: bool = False
    tie_word_embeddings: bool = False
    norm_topk_prob: bool = True
    nope_on_global_attention: bool = True
    initializer_range: float = 0.02
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        # Code that a checkpoint brings along is never run, so its address is not kept either.
        kwargs.pop("auto_map", None)
        self._read_rope(kwargs.pop("rope_parameters", None), kwargs.pop("rope_scaling", None))
        self._check_values()
        self._check_tokens()
        if not self.layer_types:
            self.layer_types = [FULL if i % 4 == 3 else SLIDING for i in range(self.num_hidden_layers)]
        self._check_shape()
        super().__post_init__(**kwargs)

    @property
    def rotary_dim(self) -> int:
        """How many leading dims of a head RoPE turns on sliding layers."""
        return int(self.head_dim * self.partial_rotary_factor)

    def _read_rope(self, parameters: object, scaling: object) -> None:
        """Accept the newer spelling, one dict, beside the published flat fields; any scaling is refused."""
        for name, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
            if value is None:
                continue
            if not isinstance(value, dict) or value.get("rope_type", "default") != "default":
                raise ValueError(f"{name} asks for a scaled RoPE, which Maple does not have")
            self.rope_theta = value.get("rope_theta", self.rope_theta)
            self.partial_rotary_factor = value.get("partial_rotary_factor", self.partial_rotary_factor)

    def _check_values(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer, not {value!r}")
        for name in ("rms_norm_eps", "rope_theta", "partial_rotary_factor", "swiglu_limit"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number, not {value!r}")
        for name, expected in _FIXED.items():
            if getattr(self, name) != expected:
                raise ValueError(
                    f"{name} must be {expected!r}, as in every Maple, not {getattr(self, name)!r}"
                )

    def _check_tokens(self) -> None:
        for name in ("eos_token_id", "pad_token_id", "bos_token_id"):
            value = getattr(self, name)
            ids = value if isinstance(value, list) else [] if value is None else [value]
            for token in ids:
                if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.vocab_size:
                    raise ValueError(f"{name} must be a token id below {self.vocab_size}, not {token!r}")

    def _check_shape(self) -> None:
        types: object = self.layer_types
        if not isinstance(types, list) or any(kind not in (FULL, SLIDING) for kind in types):
            raise ValueError(f"layer_types must be a list of {FULL!r} and {SLIDING!r}")
        if len(types) != self.num_hidden_layers:
            raise ValueError(f"layer_types has {len(types)} entries for {self.num_hidden_layers} layers")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError("num_experts_per_tok must not be larger than num_experts")
        if self.partial_rotary_factor > 1 or self.rotary_dim < 2 or self.rotary_dim % 2:
            raise ValueError("partial_rotary_factor must turn an even number of each head's dims")
        for name in ("hidden_size", "moe_intermediate_size", "head_dim"):
            if getattr(self, name) % 4:
                raise ValueError(f"{name} must be a multiple of 4, the weights of one packed byte")
