"""Make Transformers' Auto classes and ``from_pretrained`` know Maple."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter

from maple.torch_model.configuration import MapleConfig
from maple.torch_model.modeling import MapleForCausalLM, MapleModel


def register() -> None:
    """Register config, models and the published tensor names; calling it again changes nothing."""
    AutoConfig.register(MapleConfig.model_type, MapleConfig, exist_ok=True)
    AutoModel.register(MapleConfig, MapleModel, exist_ok=True)
    AutoModelForCausalLM.register(MapleConfig, MapleForCausalLM, exist_ok=True)
    register_checkpoint_conversion_mapping(MapleConfig.model_type, _published_names(), overwrite=True)


def _published_names() -> list[WeightConverter]:
    """One tensor per expert, as published; what is saved goes back to these names."""
    return [
        WeightConverter(
            source_patterns=["mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"],
            target_patterns="mlp.experts.gate_up_proj",
            operations=[MergeModulelist(dim=0), Concatenate(dim=1)],
        ),
        WeightConverter(
            source_patterns="mlp.experts.*.down_proj.weight",
            target_patterns="mlp.experts.down_proj",
            operations=[MergeModulelist(dim=0)],
        ),
    ]
