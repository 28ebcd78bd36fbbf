"""Checkpoints that cannot be loaded say why in one line."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

from maple.checkpoint.errors import LoadCancelled, LoadError, MapleModelError
from maple.checkpoint.progress import LoadProgress
from maple.torch_model.load import LoadedModel, LoadOptions, load

Load = Callable[..., LoadedModel]

SHARD = "model-00001-of-00002.safetensors"


def failure(load_model: Load, source: pathlib.Path | str, **options: Any) -> str:
    """The one line of the error, which never shows where the folder lies."""
    with pytest.raises(LoadError) as caught:
        load_model(source, **options)
    line = str(caught.value)
    assert line
    assert "\n" not in line
    assert len(line) <= 400
    if isinstance(source, pathlib.Path):
        assert str(source.parent) not in line
    assert isinstance(caught.value, MapleModelError)
    return line


def test_a_missing_folder(load_model: Load, tmp_path: pathlib.Path) -> None:
    """The folder's last name is in the line."""
    assert failure(load_model, tmp_path / "no-such-model") == "model folder no-such-model does not exist"


def test_a_file_where_a_folder_was_expected(load_model: Load, golden_folder: pathlib.Path) -> None:
    """A weight file is not a model folder."""
    line = failure(load_model, golden_folder / "mlx-2bit" / "model.safetensors")
    assert line.startswith("model.safetensors is a file")


def test_a_folder_without_config(copy_of: Any, load_model: Load) -> None:
    """config.json is asked for by name."""
    folder = copy_of("bf16-stacked")
    (folder.path / "config.json").unlink()
    assert failure(load_model, folder.path) == "bf16-stacked has no config.json"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "names LlamaForCausalLM"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": None}, "names LlamaForCausalLM"),
        ({"architectures": None, "model_type": "qwen3_moe"}, "names qwen3_moe"),
        ({"architectures": None, "model_type": None}, "names no architecture"),
        ({"architectures": {}, "model_type": None}, "names no architecture"),
    ],
)
def test_another_architecture(fields: dict[str, Any], expected: str, copy_of: Any, load_model: Load) -> None:
    """What is not a Maple is said not to be one, and what it is."""
    folder = copy_of("bf16-stacked")
    folder.edit_config(**fields)
    line = failure(load_model, folder.path)
    assert line.startswith("bf16-stacked is not a Maple")
    assert expected in line


@pytest.mark.parametrize(
    "field",
    [
        "hidden_size",
        "num_experts",
        "layer_types",
        "sliding_window",
        "rope_theta",
        "eos_token_id",
        "vocab_size",
    ],
)
def test_a_missing_field(field: str, copy_of: Any, load_model: Load) -> None:
    """No default of ours stands in for a field that shapes the computation."""
    folder = copy_of("bf16-stacked")
    folder.edit_config(**{field: None})
    assert failure(load_model, folder.path) == f"config.json of bf16-stacked lacks {field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "128"),
        ("hidden_size", 128.0),
        ("hidden_size", True),
        ("hidden_size", -1),
        ("hidden_size", 130),
        ("num_attention_heads", 3),
        ("num_experts_per_tok", 9),
        ("layer_types", ["sliding_attention"] * 3),
        ("layer_types", ["sliding_attention"] * 3 + ["linear_attention"]),
        ("layer_types", "full_attention"),
        ("sliding_window", 0),
        ("rms_norm_eps", 0),
        ("rope_theta", "10000"),
        ("partial_rotary_factor", 2),
        ("partial_rotary_factor", 0.01),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4}),
        ("hidden_act", "gelu"),
        ("use_bias", True),
        ("use_qk_norm", False),
        ("tie_word_embeddings", True),
        ("norm_topk_prob", False),
        ("first_k_dense_replace", 1),
        ("nope_on_global_attention", False),
        ("eos_token_id", 512),
        ("eos_token_id", "2"),
        ("pad_token_id", [0, True]),
    ],
)
def test_a_wrong_field(field: str, value: object, copy_of: Any, load_model: Load) -> None:
    """A value of the wrong kind, and a variant that no Maple has, are refused by the field's name."""
    folder = copy_of("bf16-stacked")
    folder.edit_config(**{field: value})
    line = failure(load_model, folder.path)
    assert line.startswith("config.json of bf16-stacked: ")
    assert field in line


@pytest.mark.parametrize("text", ["{", "[1]", "\ufeff{}", '{"a": NaN', "", "[" * 100_000])
def test_a_config_that_is_not_json(text: str, copy_of: Any, load_model: Load) -> None:
    """Broken JSON, another value than an object, and hostile nesting give one line."""
    folder = copy_of("bf16-stacked")
    (folder.path / "config.json").write_text(text)
    assert failure(load_model, folder.path).startswith("config.json is not ")


def test_a_config_that_is_no_text(copy_of: Any, load_model: Load) -> None:
    """Bytes that are not UTF-8 are not JSON either; a folder of that name is not a config."""
    folder = copy_of("bf16-stacked")
    (folder.path / "config.json").write_bytes(b"\xff\xfe{}")
    assert failure(load_model, folder.path) == "config.json is not valid JSON"
    (folder.path / "config.json").unlink()
    (folder.path / "config.json").mkdir()
    assert failure(load_model, folder.path) == "bf16-stacked has no config.json"


def test_a_config_of_another_shape_than_the_weights(copy_of: Any, load_model: Load) -> None:
    """The first tensor that does not fit is named with both shapes."""
    folder = copy_of("bf16-stacked")
    folder.edit_config(vocab_size=511)
    line = failure(load_model, folder.path)
    assert line == "tensor model.word_embeddings.weight has shape [512, 128] where [511, 128] was expected"


def test_a_folder_without_weights(copy_of: Any, load_model: Load) -> None:
    """Both file names that would do are in the line."""
    folder = copy_of("bf16-stacked")
    folder.weights.unlink()
    line = failure(load_model, folder.path)
    assert line == "bf16-stacked holds neither model.safetensors nor model.safetensors.index.json"


def test_an_index_that_names_a_missing_shard(copy_of: Any, load_model: Load) -> None:
    """The shard is named."""
    folder = copy_of("bf16-per-expert")
    (folder.path / SHARD).unlink()
    line = failure(load_model, folder.path)
    assert line == f"model.safetensors.index.json names {SHARD}, which is not in bf16-per-expert"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": []}, "has no weight_map"),
        ({"weight_map": {"a": 1}}, "has no weight_map"),
        ({"weight_map": {"a": "../secret.safetensors"}}, "outside its folder"),
        ({"weight_map": {"a": "/etc/passwd"}}, "outside its folder"),
        ({"weight_map": {"a": "..\\secret"}}, "outside its folder"),
        ({"weight_map": {"a": ".."}}, "which is not in"),
    ],
)
def test_a_hostile_index(content: Any, expected: str, copy_of: Any, load_model: Load) -> None:
    """An index without its map, or one that reaches outside the folder, is refused."""
    folder = copy_of("bf16-per-expert")
    (folder.path / "model.safetensors.index.json").write_text(json.dumps(content))
    assert expected in failure(load_model, folder.path)


@pytest.mark.parametrize("keep", [0, 3, 8, 100, 2_000_000, -1])
def test_a_truncated_shard(keep: int, copy_of: Any, load_model: Load) -> None:
    """Cut anywhere, by one byte or to nothing, the file is named."""
    folder = copy_of("bf16-stacked")
    folder.weights.write_bytes(folder.weights.read_bytes()[:keep])
    line = failure(load_model, folder.path)
    assert line.startswith("model.safetensors is truncated or not a safetensors file")


def rewrite_header(path: pathlib.Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Put an edited header before the same data."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    change(header)
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + raw[8 + size :])


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["lm_head.weight"].update(shape=[512, 129]),
        lambda header: header["lm_head.weight"].update(dtype="Q2"),
        lambda header: header["lm_head.weight"].update(data_offsets=[0, 1 << 40]),
        lambda header: header["lm_head.weight"].update(data_offsets=[5, 3]),
        lambda header: header["lm_head.weight"].pop("shape"),
    ],
    ids=["shape", "dtype", "beyond the file", "backwards", "no shape"],
)
def test_a_bad_header(change: Callable[[dict[str, Any]], None], copy_of: Any, load_model: Load) -> None:
    """A header that lies about its data is refused before anything is read."""
    folder = copy_of("bf16-stacked")
    rewrite_header(folder.weights, change)
    line = failure(load_model, folder.path)
    assert line.startswith("model.safetensors is truncated or not a safetensors file")


def test_a_header_that_claims_to_be_huge(copy_of: Any, load_model: Load) -> None:
    """A length of 2^63 is refused without an attempt to read it."""
    folder = copy_of("bf16-stacked")
    folder.weights.write_bytes(struct.pack("<Q", 1 << 63) + folder.weights.read_bytes()[8:])
    assert "model.safetensors is truncated" in failure(load_model, folder.path)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("bf16-stacked", "lm_head.weight"),
        ("bf16-stacked", "model.norm.weight"),
        ("bf16-stacked", "model.layers.3.mlp.gate.weight"),
        ("bf16-stacked", "model.layers.1.self_attn.k_proj.weight"),
        ("mlx-2bit", "lm_head.scales"),
        ("mlx-2bit", "lm_head.biases"),
        ("mlx-2bit", "model.layers.0.self_attn.q_proj.row_alpha"),
        ("mlx-2bit", "model.layers.2.mlp.switch_mlp.up_proj.row_alpha"),
    ],
)
def test_a_missing_tensor(spelling: str, name: str, copy_of: Any, load_model: Load) -> None:
    """It is named as its spelling has it."""
    folder = copy_of(spelling)
    folder.edit(lambda tensors: tensors.pop(name))
    assert failure(load_model, folder.path) == f"tensor {name} is missing"


def test_a_missing_expert(golden_folder: pathlib.Path, tmp_path: pathlib.Path, load_model: Load) -> None:
    """Of one tensor an expert, the one not there is named; so are experts that are not there at all."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "bf16-per-expert"
    shutil.copytree(golden_folder / "bf16-per-expert", folder)
    tensors = load_file(folder / SHARD)
    name = "model.layers.0.mlp.experts.6.down_proj.weight"
    tensors.pop(name)
    save_file(tensors, folder / SHARD)
    assert failure(load_model, folder) == f"tensor {name} is missing"
    stacked = tmp_path / "bf16-stacked"
    shutil.copytree(golden_folder / "bf16-stacked", stacked)
    tensors = load_file(stacked / "model.safetensors")
    tensors.pop("model.layers.0.mlp.experts.gate_proj")
    save_file(tensors, stacked / "model.safetensors")
    line = failure(load_model, stacked)
    assert line == "tensor model.layers.0.mlp.experts.0.gate_proj.weight is missing"


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.4.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.mlp.experts.8.gate_proj.weight",
        "model.layers.0.mlp.shared_expert.gate_proj.weight",
        "vision.weight",
    ],
)
def test_a_surplus_tensor(name: str, copy_of: Any, load_model: Load) -> None:
    """A tensor that the model would not use means another model, and is named."""
    folder = copy_of("bf16-stacked")
    folder.edit(lambda tensors: tensors.update({name: torch.ones(4)}))
    assert failure(load_model, folder.path) == f"tensor {name} is not part of a Maple of this shape"


def test_the_same_tensor_twice(copy_of: Any, load_model: Load) -> None:
    """A tensor in two shards is refused with both."""
    folder = copy_of("bf16-stacked")
    shutil.copyfile(folder.weights, folder.path / "model-2.safetensors")
    weight_map = {"a": "model.safetensors", "b": "model-2.safetensors"}
    (folder.path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert re.fullmatch(r"tensor \S+ is in both \S+ and \S+", failure(load_model, folder.path))


@pytest.mark.parametrize(
    ("spelling", "name", "shape"),
    [
        ("bf16-stacked", "model.layers.0.mlp.experts.up_proj", (8, 128, 64)),
        ("bf16-stacked", "model.layers.0.self_attn.q_norm.weight", (128,)),
        ("mlx-2bit", "model.layers.0.self_attn.q_proj.weight", (256, 16)),
        ("mlx-2bit", "model.layers.0.mlp.switch_mlp.up_proj.row_alpha", (8, 128)),
        ("mlx-2bit", "model.word_embeddings.weight", (512, 32)),
        ("mlx-2bit", "model.word_embeddings.biases", (512, 4)),
        ("mlx-2bit", "model.word_embeddings.scales", (512, 3)),
        ("mlx-2bit", "model.word_embeddings.scales", ()),
    ],
)
def test_a_misshapen_tensor(
    spelling: str, name: str, shape: tuple[int, ...], copy_of: Any, load_model: Load
) -> None:
    """It is named before any weight is read."""
    folder = copy_of(spelling)
    folder.edit(lambda t: t.update({name: torch.zeros(shape, dtype=t[name].dtype)}))
    assert failure(load_model, folder.path).startswith(f"tensor {name} has ")


@pytest.mark.parametrize(
    ("spelling", "name", "dtype"),
    [
        ("bf16-stacked", "model.norm.weight", torch.int32),
        ("bf16-stacked", "model.layers.0.self_attn.q_proj.weight", torch.int8),
        ("mlx-2bit", "model.layers.0.self_attn.q_proj.row_alpha", torch.uint8),
        ("mlx-2bit", "lm_head.scales", torch.int16),
    ],
)
def test_a_tensor_of_another_dtype(
    spelling: str, name: str, dtype: torch.dtype, copy_of: Any, load_model: Load
) -> None:
    """Integers where floats belong are refused by name."""
    folder = copy_of(spelling)
    folder.edit(lambda t: t.update({name: t[name].to(dtype)}))
    assert failure(load_model, folder.path).startswith(f"tensor {name} has dtype ")


def test_a_quantised_router(copy_of: Any, load_model: Load) -> None:
    """The router decides in fp32 and is never packed."""
    folder = copy_of("mlx-2bit")
    name = "model.layers.0.mlp.gate.weight"
    folder.edit(lambda t: t.update({name: torch.zeros(8, 8, dtype=torch.uint32)}))
    assert failure(load_model, folder.path) == f"tensor {name} is quantised, which no Maple stores so"


def test_words_that_do_not_divide_the_columns(copy_of: Any, load_model: Load) -> None:
    """Sixteen codes a word need a width that sixteen divides."""
    folder = copy_of("mlx-2bit")
    folder.edit_config(moe_intermediate_size=36)
    narrow = [key for key in folder.tensors() if "gate_proj" in key or "up_proj" in key]
    folder.edit(lambda t: t.update({key: t[key][:, :36] for key in narrow}))
    assert "packs 36 columns into words of 16" in failure(load_model, folder.path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("bf16-stacked", "model.word_embeddings.weight"),
        ("bf16-stacked", "model.layers.1.input_layernorm.weight"),
        ("bf16-stacked", "model.layers.1.self_attn.v_proj.weight"),
        ("bf16-stacked", "model.layers.1.mlp.experts.down_proj"),
        ("mlx-2bit", "lm_head.scales"),
        ("mlx-2bit", "model.word_embeddings.biases"),
        ("mlx-2bit", "model.layers.3.mlp.switch_mlp.gate_proj.row_alpha"),
    ],
)
@pytest.mark.parametrize("pack", ["true", "false"])
def test_weights_that_are_not_finite(
    pack: str, spelling: str, name: str, value: float, copy_of: Any, load_model: Load
) -> None:
    """NaN or infinity anywhere names the tensor, packed or not."""
    folder = copy_of(spelling)

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[7] = value

    folder.edit(spoil)
    line = failure(load_model, folder.path, pack_experts=pack)
    assert line == f"tensor {name} holds NaN or infinity"


@pytest.mark.parametrize("pack", ["true", "false"])
@pytest.mark.parametrize("name", ["model.layers.0.self_attn.o_proj", "model.layers.2.mlp.switch_mlp.up_proj"])
def test_the_unused_two_bit_code(pack: str, name: str, copy_of: Any, load_model: Load) -> None:
    """Code 3 names tensor and row."""
    folder = copy_of("mlx-2bit")

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        words = tensors[f"{name}.weight"]
        words.view(-1, words.shape[-1])[5].view(torch.int32)[2] |= 0b11 << 8

    folder.edit(spoil)
    line = failure(load_model, folder.path, pack_experts=pack)
    assert line == f"tensor {name}.weight holds the code 3, which stands for no weight, in row 5"


def test_hostile_names_make_one_bounded_line(copy_of: Any, load_model: Load) -> None:
    """A tensor's name may hold newlines and be endless; the error may not."""
    folder = copy_of("bf16-stacked")
    folder.edit(lambda tensors: tensors.update({"x\ny\r" * 1000: torch.ones(1)}))
    failure(load_model, folder.path)


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("device", "tpu", "device must be one of auto, cpu, cuda, cuda:N, mps, not 'tpu'"),
        ("device", "cuda:x", "device must be one of auto, cpu, cuda, cuda:N, mps, not 'cuda:x'"),
        ("device", "cuda:99", "device cuda:99 is not available here"),
        ("dtype", "int8", "dtype must be one of auto, float32, bfloat16, float16, not 'int8'"),
        ("pack_experts", "maybe", "pack_experts must be one of auto, true, false, not 'maybe'"),
        ("head_dtype", "int8", "head_dtype must be one of auto, bfloat16, float32, not 'int8'"),
    ],
)
def test_a_setting_that_cannot_be_met(
    setting: str, value: str, expected: str, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """Words that mean nothing and devices that are not there are refused, with what would do."""
    assert failure(load_model, golden_folder / "mlx-2bit", **{setting: value}) == expected


@pytest.mark.parametrize("spelling", ["bf16-stacked", "bf16-per-expert", "mlx-2bit"])
def test_a_load_can_be_cancelled_between_tensors(spelling: str, golden_folder: pathlib.Path) -> None:
    """Once ``cancelled`` says yes no further tensor is reported, and LoadCancelled leaves."""
    reports: list[LoadProgress] = []
    with pytest.raises(LoadCancelled):
        load(
            LoadOptions(source=str(golden_folder / spelling)),
            progress=reports.append,
            cancelled=lambda: len(reports) >= 3,
        )
    assert len(reports) == 3
