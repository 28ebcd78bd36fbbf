"""The config of Transformers' form, and what it refuses."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from maple.checkpoint.errors import LoadError
from maple.torch_model.configuration import MapleConfig
from maple.torch_model.load import LoadedModel

Load = Callable[..., LoadedModel]


def test_the_defaults_are_maple_preview() -> None:
    """Without arguments the config is the published model's: 24 layers, every fourth of them full."""
    config = MapleConfig()
    assert config.layer_types == (["sliding_attention"] * 3 + ["full_attention"]) * 6
    assert (config.hidden_size, config.num_experts, config.num_experts_per_tok) == (2048, 256, 8)
    assert (config.rotary_dim, config.head_dim, config.sliding_window) == (64, 128, 512)
    assert config.swiglu_limit == 7.0


def test_a_saved_config_is_the_same(tmp_path: pathlib.Path) -> None:
    """What save_pretrained writes, from_pretrained reads back."""
    config = MapleConfig(num_hidden_layers=2, eos_token_id=[1, 2], partial_rotary_factor=0.25)
    config.save_pretrained(tmp_path)
    assert MapleConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


def test_the_newer_rope_spelling_is_read() -> None:
    """rope_parameters stand in for the flat fields, as newer exports write them."""
    config = MapleConfig(
        rope_parameters={"rope_type": "default", "rope_theta": 5.0, "partial_rotary_factor": 1.0}
    )
    assert (config.rope_theta, config.rotary_dim) == (5.0, 128)


def test_a_checkpoint_with_the_newer_rope_spelling_loads(
    copy_of: Any, load_model: Load, golden_folder: pathlib.Path
) -> None:
    """The required fields may come in rope_parameters."""
    folder = copy_of("mlx-2bit")
    nested = {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    folder.edit_config(rope_theta=None, partial_rotary_factor=None, rope_scaling=None, rope_parameters=nested)
    loaded = load_model(folder.path)
    assert (loaded.config.rope_theta, loaded.config.rotary_dim) == (10000.0, 32)


def test_no_code_address_is_kept(golden_folder: pathlib.Path, load_model: Load) -> None:
    """The auto_map of the published config leaves no trace."""
    loaded = load_model(golden_folder / "bf16-per-expert")
    assert not hasattr(loaded.config, "auto_map")
    assert loaded.config.model_type == "maple"


@pytest.mark.parametrize(
    ("fields", "generation", "expected"),
    [
        ({}, None, (0, 2)),
        ({"eos_token_id": [2, 7]}, None, (0, 2, 7)),
        ({"pad_token_id": None}, None, (2,)),
        ({}, {"eos_token_id": [2, 0]}, (0, 2)),
        ({}, {"eos_token_id": 9}, (0, 2, 9)),
        ({}, {"eos_token_id": [9, "x", None, True, 512, -1]}, (0, 2, 9)),
    ],
)
def test_every_token_that_ends_an_answer_is_found(
    fields: dict[str, Any],
    generation: dict[str, Any] | None,
    expected: tuple[int, ...],
    copy_of: Any,
    load_model: Load,
) -> None:
    """Those of both config files and the padding token, each once, none that is no token."""
    folder = copy_of("mlx-2bit")
    path = folder.path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    if generation is not None:
        (folder.path / "generation_config.json").write_text(json.dumps(generation))
    assert load_model(folder.path).eos_token_ids == expected


def test_the_checkpoint_s_sampling_defaults_are_passed_on(copy_of: Any, load_model: Load) -> None:
    """temperature, top_p and top_k as they are; other fields are not ours."""
    folder = copy_of("mlx-2bit")
    assert load_model(folder.path).generation_defaults == {}
    content = {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "do_sample": True}
    (folder.path / "generation_config.json").write_text(json.dumps(content))
    assert load_model(folder.path).generation_defaults == {"temperature": 1.0, "top_p": 0.95, "top_k": 20}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", [1]),
        ("top_k", 2.5),
        ("top_k", -2),
        ("top_k", float("inf")),
    ],
)
def test_a_default_out_of_range_is_passed_over(
    field: str, value: Any, copy_of: Any, load_model: Load
) -> None:
    """A field that is no number in range is left out with a warning; the others stay."""
    folder = copy_of("mlx-2bit")
    content = {"temperature": 1.0, "top_p": 1.0, "top_k": -1} | {field: value}
    (folder.path / "generation_config.json").write_text(json.dumps(content))
    with capture_logs() as logs:
        defaults = load_model(folder.path).generation_defaults
    expected = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
    del expected[field]
    assert defaults == expected
    assert [entry["field"] for entry in logs if entry["event"] == "model.default_ignored"] == [field]


def test_a_broken_generation_config_is_an_error(copy_of: Any, load_model: Load) -> None:
    """A file that cannot be read is named, not passed over."""
    folder = copy_of("mlx-2bit")
    (folder.path / "generation_config.json").write_text("{")
    with pytest.raises(LoadError, match=r"generation_config\.json is not valid JSON"):
        load_model(folder.path)
