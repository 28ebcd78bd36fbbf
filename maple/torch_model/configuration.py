"""MapleConfig: the fields of Maple's config.json, checked on the way in."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from maple.checkpoint.fields import MODEL_TYPE, settle


class MapleConfig(PreTrainedConfig):  # type: ignore[misc] # untyped base
    """Shape and constants of a Maple; the defaults are Maple-Preview's own.

    Empty ``layer_types`` mean its pattern, every fourth layer full.

    Raises ``ValueError`` with one line that names the field for any value that is not a Maple.
    """

    model_type: ClassVar[str] = MODEL_TYPE
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
        settle(self, kwargs.pop("rope_parameters", None), kwargs.pop("rope_scaling", None))
        super().__post_init__(**kwargs)

    @property
    def rotary_dim(self) -> int:
        """How many leading dims of a head RoPE turns on sliding layers."""
        return int(self.head_dim * self.partial_rotary_factor)
