"""Loading a checkpoint for the native kernels."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import structlog
from maple_testing.engine import never, quiet

from maple.checkpoint.errors import LoadCancelled, LoadError
from maple.checkpoint.progress import LoadProgress
from maple.engine.errors import ModelFailed
from maple.native.loader import KernelOptions, native_loader
from maple.native.parts import NotForKernels
from maple.native.weights import NativeSource, load_weights

LAYER = "model.layers.1."
BF16_NAN = 0x7FC0


def load(folder: pathlib.Path | str, **options: Any) -> Any:
    return load_weights(NativeSource(source=str(folder), **options), progress=quiet, cancelled=never)


def set_item(place: tuple[int, ...], value: int) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        numbers[place] = value

    return change


def rename(old: str, new: str) -> Callable[[Any], None]:
    def change(tensors: Any) -> None:
        tensors[new] = tensors.pop(old)

    return change


def reshape(name: str) -> Callable[[Any], None]:
    def change(tensors: Any) -> None:
        tensors[name].shape = tensors[name].shape[::-1]

    return change


FAULTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "missing": ("mlx-2bit", lambda f: f.edit(lambda t: t.pop(f"{LAYER}self_attn.o_proj.weight"))),
    "missing scales": ("mlx-2bit", lambda f: f.edit(lambda t: t.pop(f"{LAYER}self_attn.o_proj.row_alpha"))),
    "missing expert": (
        "bf16-stacked",
        lambda f: f.edit(rename(f"{LAYER}mlp.experts.up_proj", f"{LAYER}mlp.experts.upper_proj")),
    ),
    "surplus": ("mlx-2bit", lambda f: f.edit(lambda t: t.update({"lm_head.bias": t["model.norm.weight"]}))),
    "misshapen": ("bf16-stacked", lambda f: f.edit(reshape(f"{LAYER}mlp.experts.down_proj"))),
    "quantised norm": (
        "mlx-2bit",
        lambda f: f.edit(lambda t: t.update({"model.norm.weight": t["lm_head.weight"]})),
    ),
    "truncated": (
        "mlx-2bit",
        lambda f: (f.path / "model.safetensors").write_bytes(
            (f.path / "model.safetensors").read_bytes()[:-1000]
        ),
    ),
    "not safetensors": ("mlx-2bit", lambda f: (f.path / "model.safetensors").write_bytes(b"<html>" * 99)),
    "no weights": ("mlx-2bit", lambda f: (f.path / "model.safetensors").unlink()),
    "config of another size": ("mlx-2bit", lambda f: f.edit_config(hidden_size=64)),
    "config of no Maple": ("mlx-2bit", lambda f: f.edit_config(norm_topk_prob=False)),
    "config lacks a field": ("mlx-2bit", lambda f: f.edit_config(sliding_window=None)),
    "another model": (
        "mlx-2bit",
        lambda f: f.edit_config(model_type="llama", architectures=["LlamaForCausalLM"]),
    ),
    "no config": ("mlx-2bit", lambda f: (f.path / "config.json").unlink()),
    "broken config": ("mlx-2bit", lambda f: (f.path / "config.json").write_text("{")),
    "NaN norm": (
        "mlx-2bit",
        lambda f: f.edit_words(f"{LAYER}input_layernorm.weight", set_item((3,), BF16_NAN)),
    ),
    "NaN router": (
        "bf16-stacked",
        lambda f: f.edit_words(f"{LAYER}mlp.gate.weight", set_item((1, 5), 0xFF80)),
    ),
    "NaN head": ("bf16-stacked", lambda f: f.edit_words("lm_head.weight", set_item((9, 9), BF16_NAN))),
    "NaN table scale": (
        "mlx-2bit",
        lambda f: f.edit_words("model.word_embeddings.scales", set_item((9, 1), BF16_NAN)),
    ),
    "NaN row scale": (
        "mlx-2bit",
        lambda f: f.edit_words(f"{LAYER}self_attn.v_proj.row_alpha", set_item((7,), BF16_NAN)),
    ),
    "NaN weight": (
        "bf16-stacked",
        lambda f: f.edit_words(f"{LAYER}mlp.experts.down_proj", set_item((1, 2, 3), BF16_NAN)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_as_the_torch_path_tells_it(copy_of: Any, tmp_path: pathlib.Path, fault: str) -> None:
    """Whatever is wrong with a folder, both paths say so in the same one line, without a path."""
    pytest.importorskip("torch", reason="this compares with the torch path")
    from maple.torch_model.load import LoadOptions
    from maple.torch_model.load import load as load_with_torch

    spelling, damage = FAULTS[fault]
    folder = copy_of(spelling)
    damage(folder)
    with pytest.raises(LoadError) as native:
        load(folder.path)
    with pytest.raises(LoadError) as torch:
        load_with_torch(LoadOptions(source=str(folder.path), device="cpu"), progress=quiet)
    assert str(native.value) == str(torch.value)
    assert str(tmp_path) not in str(native.value)
    assert not isinstance(native.value, NotForKernels)


@pytest.mark.parametrize("source", ["/nowhere/maple", "nowhere"])
def test_a_missing_folder_is_told_without_its_path(source: str) -> None:
    with pytest.raises(LoadError, match="does not exist") as error:
        load(source)
    assert "/nowhere" not in str(error.value)


UNFIT: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "row not ternary": (
        "bf16-stacked",
        lambda f: f.edit_words(f"{LAYER}mlp.experts.down_proj", set_item((1, 2, 3), 0x4110)),
        "mlp.experts.down",
    ),
    "code 3": (
        "mlx-2bit",
        lambda f: f.edit_words(f"{LAYER}self_attn.q_proj.weight", set_item((4, 0), 0xFFFFFFFF)),
        "self_attn.q_proj",
    ),
    "another clamp": ("mlx-2bit", lambda f: f.edit_config(swiglu_limit=6.5), "swiglu_limit"),
}


@pytest.mark.parametrize("fault", UNFIT)
def test_what_the_kernels_do_not_compute_is_left_to_torch(copy_of: Any, fault: str) -> None:
    """A Maple that the kernels do not compute goes to the other loader; without one, one line names it."""
    spelling, damage, named = UNFIT[fault]
    folder = copy_of(spelling)
    damage(folder)
    source, kernels = NativeSource(source=str(folder.path)), KernelOptions(threads=1, kv_cache_mb=16)
    with pytest.raises(ModelFailed) as error:
        native_loader(source, kernels)(never)
    assert named in error.value.reason
    assert "\n" not in error.value.reason
    sentinel: Any = object()
    assert native_loader(source, kernels, otherwise=lambda: lambda _: sentinel)(never) is sentinel


def test_a_checkpoint_that_is_not_all_ternary_is_served_by_torch(copy_of: Any) -> None:
    """The composed loader falls back, logs one line that names the tensor, and the model answers."""
    pytest.importorskip("torch", reason="torch takes over here")
    from maple.choose_engine import model_loader
    from maple.settings import Settings

    folder = copy_of("bf16-stacked")
    UNFIT["row not ternary"][1](folder)
    with structlog.testing.capture_logs() as lines:
        loaded = model_loader(Settings(model_path=str(folder.path), device="cpu"))(never)
    assert loaded.served.dtype.startswith("float32")
    (line,) = [line for line in lines if line["event"] == "engine.kernels_unfit"]
    assert "mlp.experts.down" in line["reason"]


def test_progress_counts_every_tensor_once(golden_folder: pathlib.Path) -> None:
    """Progress ends at all bytes and all tensors of the checkpoint and never goes back."""
    seen: list[LoadProgress] = []
    source = NativeSource(source=str(golden_folder / "bf16-per-expert"))
    load_weights(source, progress=seen.append, cancelled=never)
    last = seen[-1]
    assert (last.bytes_done, last.tensors_done) == (last.bytes_total, last.tensors_total)
    assert [one.tensors_done for one in seen] == list(range(1, last.tensors_total + 1))


def test_a_load_tells_its_phases(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Packing in bytes of the checkpoint, then the load of the pack in its own; the next load has the latter alone."""
    seen: list[tuple[str, int, int]] = []
    source = NativeSource(source=str(golden_folder / "bf16-stacked"), cache_dir=tmp_path, keep_from=0)
    for phases in ({"packing", "load"}, {"load"}):
        seen.clear()
        load_weights(source, progress=quiet, cancelled=never, report=lambda *now: seen.append(now))
        assert {phase for phase, _, _ in seen} == phases
        assert seen[-1][0] == "load"
        assert seen[-1][1] == seen[-1][2] > 0


@pytest.mark.parametrize("after", [0, 5, 40])
def test_a_load_can_be_cancelled(golden_folder: pathlib.Path, tmp_path: pathlib.Path, after: int) -> None:
    """A cancel is seen between two tensors, and nothing stays in the cache folder."""
    asked = iter(range(1000))
    source = NativeSource(source=str(golden_folder / "bf16-stacked"), cache_dir=tmp_path, keep_from=0)
    with pytest.raises(LoadCancelled):
        load_weights(source, progress=quiet, cancelled=lambda: next(asked) >= after)
    assert [path.name for path in (tmp_path / "native").iterdir()] == ["lock"]


def test_an_int8_head_is_half_a_bf16_one(golden_folder: pathlib.Path) -> None:
    """The setting narrows a head that is stored in bf16, and leaves one that is stored in four bits alone."""
    heads = {
        (spelling, dtype): load(golden_folder / spelling, head_dtype=dtype).weights.head
        for spelling in ("bf16-stacked", "mlx-2bit")
        for dtype in ("auto", "int8")
    }
    assert heads["bf16-stacked", "int8"].kind.name == "INT8"
    assert heads["bf16-stacked", "int8"].data.nbytes < 0.6 * heads["bf16-stacked", "auto"].data.nbytes
    assert heads["mlx-2bit", "int8"].kind.name == heads["mlx-2bit", "auto"].kind.name == "AFFINE4"
    np.testing.assert_array_equal(heads["mlx-2bit", "int8"].data, heads["mlx-2bit", "auto"].data)


@pytest.mark.parametrize(
    ("megabytes", "told"), [(None, "loaded"), (100_000, "MAPLE_KV_CACHE_MB=100000 is more")]
)
def test_a_limit_of_address_space_is_kept_or_told(megabytes: int | None, told: str) -> None:
    """``ulimit -v``: both pools of KV blocks are reserved in full, and together stay within it."""
    program = (
        "import resource, sys\n"
        "from maple.choose_engine import DEMO_FOLDER\n"
        "from maple.engine import memory\n"
        "from maple.engine.errors import ModelFailed\n"
        "from maple.native.loader import KernelOptions, native_loader\n"
        "from maple.native.weights import NativeSource\n"
        "most = memory._address_space() + (1 << 30)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))\n"
        f"kernels = KernelOptions(threads=1, kv_cache_mb={megabytes})\n"
        "try:\n"
        "    native_loader(NativeSource(source=str(DEMO_FOLDER)), kernels)(lambda: False)\n"
        "except ModelFailed as failed:\n"
        "    sys.exit(print(failed.reason))\n"
        "print('loaded')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told in done.stdout
