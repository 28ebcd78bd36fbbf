"""Every spelling of a checkpoint gives the same weights."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from structlog.testing import capture_logs

from maple.torch_model.load import LoadedModel
from maple.torch_model.packed import AffineEmbedding, AffineHead, PackedExperts, PackedLinear, StoredEmbedding

Tensors = dict[str, torch.Tensor]
Load = Callable[..., LoadedModel]

LAYERS = range(4)


def check(loaded: LoadedModel, golden: Any, spelling: str, bound: float = 1e-3) -> None:
    """The logits of all prompts are the reference's, within the exact bound."""
    for prompt, ids in enumerate(golden.prompts):
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([ids]), use_cache=False).logits[0]
        assert (logits - golden.reference(spelling, prompt)).abs().max() <= bound


def ternary_names(tensors: Tensors) -> list[str]:
    """Names of the two-bit tensors, without their last part."""
    return [name.removesuffix(".row_alpha") for name in tensors if name.endswith(".row_alpha")]


def group_scales(tensors: Tensors, group: int = 64) -> None:
    """Replace each row's alpha by equal scales per group of columns, with their negatives as biases."""
    for base in ternary_names(tensors):
        columns = tensors[f"{base}.weight"].shape[-1] * 16
        alpha = tensors.pop(f"{base}.row_alpha")
        tensors[f"{base}.scales"] = alpha.unsqueeze(-1).repeat_interleave(
            columns // min(group, columns), dim=-1
        )
        tensors[f"{base}.biases"] = -tensors[f"{base}.scales"]


def fuse(tensors: Tensors) -> None:
    """Stack q, k, v of each layer, and up above gate of its experts, as some exports do."""
    for layer in LAYERS:
        prefix = f"model.layers.{layer}"
        stacks = {
            f"{prefix}.self_attn.qkv_proj": [f"{prefix}.self_attn.{name}_proj" for name in "qkv"],
            f"{prefix}.mlp.switch_mlp.up_gate_proj": [
                f"{prefix}.mlp.switch_mlp.{n}_proj" for n in ("up", "gate")
            ],
        }
        for fused, parts in stacks.items():
            fields = {name.rsplit(".", 1)[1] for name in tensors if name.startswith(f"{parts[0]}.")}
            for field in fields:
                found = [tensors.pop(f"{part}.{field}") for part in parts]
                rows = 1 if found[0].dim() == 3 or (field == "row_alpha" and "switch" in fused) else 0
                tensors[f"{fused}.{field}"] = torch.cat(found, dim=rows)


def fuse_grouped(tensors: Tensors) -> None:
    """Group scales and fused projections at once."""
    group_scales(tensors)
    fuse(tensors)


@pytest.mark.parametrize("respell", [group_scales, fuse, fuse_grouped])
@pytest.mark.parametrize("pack", ["true", "false"])
def test_the_other_two_bit_forms_give_the_same_model(
    respell: Callable[[Tensors], None], pack: str, copy_of: Any, golden: Any, load_model: Load
) -> None:
    """Scales per group instead of per row, fused projections, and both: the same logits, the same packing."""
    folder = copy_of("mlx-2bit")
    folder.edit(respell)
    loaded = load_model(folder.path, pack_experts=pack)
    assert loaded.packed_tensors == (28 if pack == "true" else 0)
    check(loaded, golden, "mlx-2bit")


@pytest.mark.parametrize("group", [16, 32])
def test_the_group_size_is_read_off_the_scales(
    group: int, copy_of: Any, golden: Any, load_model: Load
) -> None:
    """Whatever divides the columns is a group; config.json is not asked."""
    folder = copy_of("mlx-2bit")
    folder.edit(lambda tensors: group_scales(tensors, group))
    check(load_model(folder.path), golden, "mlx-2bit")


def test_fused_float_projections_are_cut(copy_of: Any, golden: Any, load_model: Load) -> None:
    """A bf16 checkpoint with qkv_proj and up_gate_proj packs like one without."""

    def respell(tensors: Tensors) -> None:
        for layer in LAYERS:
            prefix = f"model.layers.{layer}"
            attention = [tensors.pop(f"{prefix}.self_attn.{name}_proj.weight") for name in "qkv"]
            tensors[f"{prefix}.self_attn.qkv_proj.weight"] = torch.cat(attention)
            experts = [tensors.pop(f"{prefix}.mlp.experts.{name}_proj") for name in ("up", "gate")]
            tensors[f"{prefix}.mlp.switch_mlp.up_gate_proj.weight"] = torch.cat(experts, dim=1)

    folder = copy_of("bf16-stacked")
    folder.edit(respell)
    loaded = load_model(folder.path)
    assert loaded.packed_tensors == 28
    check(loaded, golden, "bf16-stacked")


def test_stacked_experts_may_be_called_weight(copy_of: Any, golden: Any, load_model: Load) -> None:
    """``experts.gate_proj.weight`` is the same as ``experts.gate_proj``."""

    def respell(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            tensors[f"{name}.weight"] = tensors.pop(name)

    folder = copy_of("bf16-stacked")
    folder.edit(respell)
    check(load_model(folder.path), golden, "bf16-stacked")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_float_dtypes_pack_as_well(
    dtype: torch.dtype, copy_of: Any, golden: Any, load_model: Load
) -> None:
    """A float32 copy of a bf16 checkpoint is packed without loss; float16 keeps what it cannot hold dense."""
    folder = copy_of("bf16-stacked")
    folder.edit(lambda tensors: tensors.update({name: t.to(dtype) for name, t in tensors.items()}))
    loaded = load_model(folder.path)
    if dtype == torch.float32:
        assert loaded.packed_tensors == 28
        check(loaded, golden, "bf16-stacked")
    assert loaded.model.lm_head.weight.dtype == dtype


def test_what_carries_no_weight_is_ignored(copy_of: Any, golden: Any, load_model: Load) -> None:
    """The router's expert_bias, the approximate head's file and remote code are passed over."""
    folder = copy_of("mlx-2bit")
    bias = {f"model.layers.{layer}.mlp.gate.expert_bias": torch.ones(8) for layer in LAYERS}
    folder.edit(lambda tensors: tensors.update(bias))
    save_file({"flash": torch.ones(3)}, folder.path / "model-flashhead.safetensors")
    names = list(folder.tensors())
    weight_map = dict.fromkeys(names, "model.safetensors") | {"flash": "model-flashhead.safetensors"}
    (folder.path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder.path / "configuration_maple.py").write_text("raise SystemExit('remote code ran')")
    (folder.path / "modeling_maple.py").write_text("raise SystemExit('remote code ran')")
    folder.edit_config(auto_map={"AutoConfig": "configuration_maple.MapleConfig"}, model_type=None)
    check(load_model(folder.path), golden, "mlx-2bit")


def test_shards_without_an_index_entry_are_not_read(copy_of: Any, golden: Any, load_model: Load) -> None:
    """A single weight file counts alone: an unrelated safetensors file beside it does no harm."""
    folder = copy_of("bf16-stacked")
    save_file({"adapter": torch.ones(3)}, folder.path / "adapter_model.safetensors")
    check(load_model(folder.path), golden, "bf16-stacked")


@pytest.mark.parametrize("spelling", ["bf16-stacked", "bf16-per-expert"])
def test_one_odd_row_leaves_its_tensor_dense_with_a_warning(
    spelling: str, golden_folder: pathlib.Path, tmp_path: pathlib.Path, load_model: Load
) -> None:
    """A row of two magnitudes: that tensor alone stays dense, one warning names it, the logits hold."""
    folder = tmp_path / spelling
    shutil.copytree(golden_folder / spelling, folder)
    names = {
        "bf16-stacked": ("model.safetensors", "model.layers.1.mlp.experts.up_proj", (5, 3, 7)),
        "bf16-per-expert": (
            "model-00001-of-00002.safetensors",
            "model.layers.1.mlp.experts.5.up_proj.weight",
            (3, 7),
        ),
    }
    shard, name, at = names[spelling]
    from safetensors.torch import load_file

    tensors = {key: tensor.clone() for key, tensor in load_file(folder / shard).items()}
    tensors[name][at] = 0.25
    save_file(tensors, folder / shard)
    with capture_logs() as logs:
        loaded = load_model(folder)
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [(entry["event"], entry["tensor"]) for entry in warnings] == [("model.dense", name)]
    assert loaded.packed_tensors == 27
    dense = load_model(folder, pack_experts="false")
    ids = torch.arange(40)[None] * 11
    with torch.inference_mode():
        logits = [each.model(ids, use_cache=False).logits for each in (loaded, dense)]
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=0)


def test_an_odd_attention_row_leaves_its_projection_dense(copy_of: Any, load_model: Load) -> None:
    """The same for a projection of attention; fused or not, the others stay packed."""
    folder = copy_of("bf16-stacked")

    def spoil(tensors: Tensors) -> None:
        tensors["model.layers.2.self_attn.k_proj.weight"][9, 1] = 0.25

    folder.edit(spoil)
    loaded = load_model(folder.path)
    attention = loaded.model.model.layers[2].self_attn
    assert isinstance(attention.k_proj, torch.nn.Linear)
    assert isinstance(attention.q_proj, PackedLinear)
    assert loaded.packed_tensors == 27


@pytest.mark.parametrize("change", ["scale", "bias"])
@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj", "model.layers.3.mlp.switch_mlp.down_proj"]
)
def test_group_scales_that_differ_within_a_row_stay_dense(
    change: str, name: str, copy_of: Any, load_model: Load
) -> None:
    """Groups of different scales, or a bias that is not -scale: the tensor is expanded, with a warning."""
    folder = copy_of("mlx-2bit")
    folder.edit(lambda tensors: group_scales(tensors, 32))
    tensors = folder.tensors()
    field = "scales" if change == "scale" else "biases"
    tensors[f"{name}.{field}"][..., 5, 1] *= 2
    if change == "scale":
        tensors[f"{name}.biases"] = -tensors[f"{name}.scales"]
    folder.write(tensors)
    with capture_logs() as logs:
        loaded = load_model(folder.path)
    assert [entry["tensor"] for entry in logs if entry["log_level"] == "warning"] == [f"{name}.weight"]
    assert loaded.packed_tensors == 27
    words = tensors[f"{name}.weight"].view(torch.int32).unsqueeze(-1)
    codes = (words >> torch.arange(0, 32, 2) & 3).flatten(-2).float()
    grouped = codes.unflatten(-1, (-1, 32))
    scales, biases = (tensors[f"{name}.{part}"].float().unsqueeze(-1) for part in ("scales", "biases"))
    expected = (grouped * scales + biases).flatten(-2)
    if "self_attn" in name:
        weight = loaded.model.model.layers[0].self_attn.q_proj.weight
    else:
        weight = loaded.model.model.layers[3].mlp.experts.down_weight
    torch.testing.assert_close(weight.float(), expected, rtol=2**-8, atol=0)


def test_compact_weights_stay_compact(golden_folder: pathlib.Path, load_model: Load) -> None:
    """Two-bit and four-bit tensors are used as they lie; bf16 tables stay bf16 under fp32 activations."""
    loaded = load_model(golden_folder / "mlx-2bit")
    assert isinstance(loaded.model.model.word_embeddings, AffineEmbedding)
    assert isinstance(loaded.model.lm_head, AffineHead)
    layer = loaded.model.model.layers[0]
    assert isinstance(layer.self_attn.o_proj, PackedLinear)
    assert isinstance(layer.mlp.experts, PackedExperts)
    assert loaded.bytes < (golden_folder / "mlx-2bit" / "model.safetensors").stat().st_size * 1.1
    assert loaded.dtype == "float32 + 2-bit ternary weights (28 packed)"
    stored = load_model(golden_folder / "bf16-stacked")
    assert isinstance(stored.model.model.word_embeddings, StoredEmbedding)
    assert stored.model.model.word_embeddings.weight.dtype == torch.bfloat16
    assert stored.model.lm_head.weight.dtype == torch.bfloat16
    assert layer.mlp.gate.weight.dtype == torch.float32


@pytest.mark.parametrize("spelling", ["bf16-stacked", "mlx-2bit"])
@pytest.mark.parametrize("head", ["bfloat16", "float32"])
def test_the_head_can_be_kept_in_another_dtype(
    spelling: str, head: str, golden_folder: pathlib.Path, golden: Any, load_model: Load
) -> None:
    """Both dtypes hold a head that is stored in bf16; a 4-bit one is not rounded but where bf16 is asked for."""
    loaded = load_model(golden_folder / spelling, head_dtype=head)
    assert str(loaded.model.lm_head.weight.dtype) == f"torch.{head}"
    check(loaded, golden, spelling, 0.03 if (spelling, head) == ("mlx-2bit", "bfloat16") else 1e-3)


@pytest.mark.parametrize("spelling", ["bf16-stacked", "bf16-per-expert", "mlx-2bit"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dense_weights_take_the_dtype_asked_for(
    spelling: str, dtype: str, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """With packing off, as on accelerators, the experts are stacked for grouped matmuls in that dtype.

    Keys and values beside 16-bit weights are half precision, whichever the weights are.
    """
    loaded = load_model(golden_folder / spelling, dtype=dtype, pack_experts="false")
    experts = loaded.model.model.layers[0].mlp.experts
    assert experts.gate_up_proj.shape == (8, 128, 128)
    assert str(experts.down_proj.dtype) == f"torch.{dtype}"
    assert (loaded.dtype, loaded.packed_tensors) == (dtype, 0)
    with torch.inference_mode():
        out = loaded.model(torch.tensor([[5, 17, 300]]), use_cache=True)
    assert out.logits.dtype == torch.float32
    assert out.cache.layers[0].keys.dtype == loaded.model.kv_dtype
    assert loaded.model.kv_dtype == (torch.float32 if dtype == "float32" else torch.float16)
