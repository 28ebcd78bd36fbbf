"""The sapling's dimensions, as its config.json states them."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Shape:
    """Sizes of a small Maple; see ``config`` for what each one is called there."""

    vocabulary: int = 2560
    hidden: int = 256
    layers: int = 4
    heads: int = 6
    kv_heads: int = 3
    head_dim: int = 64
    rotary_dim: int = 32
    window: int = 256
    experts: int = 8
    active_experts: int = 2
    expert_width: int = 192
    rope_theta: float = 10000.0
    clamp: float = 7.0
    epsilon: float = 1e-6
    context: int = 4096

    def is_sliding(self, layer: int) -> bool:
        """Three sliding layers, then a full one."""
        return layer % 4 != 3

    def config(self) -> dict[str, Any]:
        """The config.json of the export."""
        return {
            "architectures": ["MapleForCausalLM"],
            "model_type": "maple",
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.expert_width,
            "moe_intermediate_size": self.expert_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_experts": self.experts,
            "num_experts_per_tok": self.active_experts,
            "first_k_dense_replace": 0,
            "rms_norm_eps": self.epsilon,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "partial_rotary_factor": self.rotary_dim / self.head_dim,
            "max_position_embeddings": self.context,
            "vocab_size": self.vocabulary,
            "sliding_window": self.window,
            "layer_types": [
                "sliding_attention" if self.is_sliding(n) else "full_attention" for n in range(self.layers)
            ],
            "use_qk_norm": True,
            "use_bias": False,
            "tie_word_embeddings": False,
            "norm_topk_prob": True,
            "hidden_act": "silu",
            "eos_token_id": 2,
            "pad_token_id": 0,
            "torch_dtype": "bfloat16",
            "quantization": {"group_size": 128, "bits": 2},
            "quantization_config": {"group_size": 128, "bits": 2},
        }
