"""What a model folder says about itself: config.json and generation_config.json."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import structlog

from maple.checkpoint.errors import LoadError
from maple.checkpoint.fields import MODEL_TYPE, MapleFields, PlainConfig, fits
from maple.checkpoint.shards import read_json

ARCHITECTURE = "MapleForCausalLM"

# Without one of these a default would silently stand in for the checkpoint's own value.
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_experts",
    "num_experts_per_tok",
    "rms_norm_eps",
    "max_position_embeddings",
    "sliding_window",
    "layer_types",
    "eos_token_id",
)
_ROPE = ("rope_theta", "partial_rotary_factor")  # flat, or in rope_parameters
# How the weights are stored is read off the tensors; what Transformers would do about it does not apply.
_DROPPED = ("quantization", "quantization_config", "auto_map")

log = structlog.get_logger(__name__)


def read_fields(folder: pathlib.Path) -> dict[str, Any]:
    """The fields of a Maple folder's config.json, the required ones among them.

    Raises ``LoadError`` if there is none, or if it is not a Maple's.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise LoadError(f"{folder.name} has no config.json")
    content = read_json(path)
    _require_maple(content, folder.name)
    rope = content.get("rope_parameters")
    for field in (*_REQUIRED, *_ROPE):
        nested = field in _ROPE and isinstance(rope, dict) and field in rope
        if content.get(field) in (None, []) and not nested:
            raise LoadError(f"config.json of {folder.name} lacks {field}")
    return {key: value for key, value in content.items() if key not in _DROPPED}


def read_config(folder: pathlib.Path) -> PlainConfig:
    """The checked config of a Maple folder; raises ``LoadError`` naming the field at fault."""
    return check_config(folder, read_fields(folder))


def check_config(folder: pathlib.Path, fields: Mapping[str, Any]) -> PlainConfig:
    """The config of a folder's fields; raises ``LoadError`` naming the one at fault."""
    try:
        return PlainConfig.of(fields)
    except ValueError as error:
        raise LoadError(f"config.json of {folder.name}: {error}") from error


def _require_maple(content: Mapping[str, Any], name: str) -> None:
    """The published config has no model_type; then the architecture's name decides."""
    architectures = content.get("architectures")
    architectures = architectures if isinstance(architectures, list) else []
    model_type = content.get("model_type")
    if model_type == MODEL_TYPE or (model_type is None and ARCHITECTURE in architectures):
        return
    found = next((a for a in architectures if isinstance(a, str)), model_type)
    raise LoadError(f"{name} is not a Maple: its config.json names {found or 'no architecture'}")


def eos_token_ids(folder: pathlib.Path, config: MapleFields) -> tuple[int, ...]:
    """Every id that ends an answer, ascending: those both config files name, and the padding token.

    Maple pads with ``<|endoftext|>``, which ends a text as well and means nothing inside one.
    """
    ids = {config.pad_token_id}
    for value in (config.eos_token_id, _generation_config(folder).get("eos_token_id")):
        ids.update(value if isinstance(value, list) else [value])
    return tuple(sorted(i for i in ids if type(i) is int and 0 <= i < config.vocab_size))


def generation_defaults(folder: pathlib.Path) -> dict[str, float]:
    """temperature, top_p and top_k of generation_config.json, as far as they are numbers in range."""
    content = _generation_config(folder)
    sound = {
        "temperature": lambda value: fits(value, int, float, low=0, high=2),
        "top_p": lambda value: fits(value, int, float, low=math.ulp(0.0), high=1),
        "top_k": lambda value: fits(value, int, low=-1),
    }
    named = {name: content[name] for name in sound if content.get(name) is not None}
    for name, value in named.items():
        if not sound[name](value):
            log.warning("model.default_ignored", file="generation_config.json", field=name)
    return {name: value for name, value in named.items() if sound[name](value)}


def _generation_config(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return read_json(path) if path.is_file() else {}
