"""Maple as a Transformers model: decoder-only, every layer a mixture of ternary experts."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.integrations import use_experts_implementation
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_outputs import MoeCausalLMOutputWithPast, MoeModelOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep

from maple.checkpoint.fields import FULL, SLIDING
from maple.torch_model.configuration import MapleConfig
from maple.torch_model.kv_layers import new_cache
from maple.torch_model.layers import (
    MapleAttention,
    MapleHead,
    MapleRMSNorm,
    RotaryTables,
    add_residual,
    kv_dtype,
    rotary_tables,
    wide_linear,
)
from maple.torch_model.routing import MapleRouter, clamped_swiglu, sum_of_experts


@use_experts_implementation
class MapleExperts(nn.Module):
    """Dense experts, stacked as Transformers' grouped matmuls want them: gate rows above up rows."""

    def __init__(self, config: MapleConfig) -> None:
        super().__init__()
        self.num_experts = config.num_experts
        self.limit = config.swiglu_limit
        hidden, width = config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, hidden, width))

    def _apply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return clamped_swiglu(gate, up, self.limit)

    def run_expert(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """One expert on [tokens, hidden], in fp32."""
        gated = self._apply_gate(wide_linear(x, self.gate_up_proj[expert]))
        return wide_linear(gated, self.down_proj[expert])

    def forward(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The eager form; [tokens, hidden] to the same shape. It alone rounds nothing beside 16-bit weights."""
        return sum_of_experts(self.run_expert, x, experts, weights)


class MapleMoE(nn.Module):
    """Router and experts of one layer."""

    def __init__(self, config: MapleConfig) -> None:
        super().__init__()
        self.config = config
        self.gate = MapleRouter(config)
        self.experts: nn.Module = MapleExperts(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, hidden] to the same shape."""
        rows = x.reshape(-1, x.shape[-1])
        chosen = self.gate(rows)
        out: torch.Tensor = self.experts(self._rounded(rows), *chosen)
        return out.view_as(x)

    def _rounded(self, rows: torch.Tensor) -> torch.Tensor:
        """What the experts are to read: most of Transformers' forms of them want the weights' dtype."""
        if not isinstance(self.experts, MapleExperts):
            return rows
        widens = self.config._experts_implementation in ("eager", "grouped_mm")
        return rows if widens else rows.to(self.experts.down_proj.dtype)


class MapleDecoderLayer(nn.Module):
    """Attention and experts, each behind a norm and a residual."""

    def __init__(self, config: MapleConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = MapleAttention(config, layer_idx)
        self.mlp = MapleMoE(config)
        self.input_layernorm = MapleRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = MapleRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        x: torch.Tensor,
        rotary: RotaryTables,
        mask: torch.Tensor | None,
        cache: Cache | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[batch, tokens, hidden] to the same shape."""
        x = add_residual(x, self.self_attn(self.input_layernorm(x), rotary, mask, cache, **kwargs))
        return add_residual(x, self.mlp(self.post_attention_layernorm(x)))


class MaplePreTrainedModel(PreTrainedModel):  # type: ignore[misc] # untyped base
    """What Transformers wants to know of a Maple, bare or with its head."""

    config: MapleConfig
    config_class = MapleConfig
    base_model_prefix = "model"
    _no_split_modules: ClassVar[list[str]] = ["MapleDecoderLayer"]
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["mlp.gate"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = False

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As in Transformers, for a dense model; ValueError for one whose weights stay compact."""
        if any(getattr(module, "compact", False) for module in self.modules()):
            raise ValueError("a model with packed weights cannot be saved: load it with pack_experts=false")
        super().save_pretrained(*args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MapleRMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, MapleExperts | MapleRouter | MapleHead):
            for parameter in module.parameters(recurse=False):
                init.normal_(parameter, mean=0.0, std=self.config.initializer_range)


class MapleModel(MaplePreTrainedModel):
    """Embedding, decoder layers and the final norm."""

    def __init__(self, config: MapleConfig) -> None:
        super().__init__(config)
        self.word_embeddings: nn.Module = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(MapleDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = MapleRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding module."""
        return self.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding module."""
        self.word_embeddings = value

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | dict[str, torch.Tensor | None] | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> MoeModelOutputWithPast:
        """Hidden states, fp32 [batch, tokens, hidden], after the final norm.

        ``position_ids`` default to the cache's length and on; ``attention_mask`` is a padding mask [batch, keys],
        or a dict of ready masks by layer type.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass input_ids or inputs_embeds, and not both")
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = new_cache(self.config)
        x = (self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds).float()
        if position_ids is None:
            past = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(x.shape[1], device=x.device).unsqueeze(0) + past
        masks = attention_mask if isinstance(attention_mask, dict) else self.masks(x, attention_mask, cache)
        rotary = rotary_tables(self.config, position_ids)
        for kind, layer in zip(self.config.layer_types, self.layers, strict=True):
            x = layer(x, rotary, masks[kind], cache, **kwargs)
        return MoeModelOutputWithPast(last_hidden_state=self.norm(x), cache=cache)

    def masks(
        self, x: torch.Tensor, padding: torch.Tensor | None, cache: Cache | None
    ) -> dict[str, torch.Tensor | None]:
        """The mask of each kind of layer; ``padding`` is [batch, tokens], 0 where nothing is."""
        args = {"config": self.config, "inputs_embeds": x, "attention_mask": padding, "cache": cache}
        return {FULL: create_causal_mask(**args), SLIDING: create_sliding_window_causal_mask(**args)}


class MapleForCausalLM(MaplePreTrainedModel, GenerationMixin):  # type: ignore[misc] # untyped base
    """Maple with its output head."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {}

    def __init__(self, config: MapleConfig) -> None:
        super().__init__(config)
        self.model = MapleModel(config)
        self.lm_head: nn.Module = MapleHead(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding module."""
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding module."""
        self.model.set_input_embeddings(value)

    @property
    def kv_dtype(self) -> torch.dtype:
        """What a cache of this model holds."""
        return kv_dtype(self.dtype)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | dict[str, torch.Tensor | None] | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> MoeCausalLMOutputWithPast:
        """Logits, fp32 [batch, kept tokens, vocabulary], and the cache, grown by the tokens given.

        ``logits_to_keep`` counts from the end, 0 keeps all; the other arguments are those of
        ``MapleModel.forward``.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        loss = (
            None if labels is None else self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
        )
        return MoeCausalLMOutputWithPast(loss=loss, logits=logits, cache=outputs.cache)
