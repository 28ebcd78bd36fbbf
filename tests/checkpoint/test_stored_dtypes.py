"""Every dtype that a Maple may be stored in, for every kind of tensor, on both paths."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import pytest
import structlog
from maple_testing.reference import Reference

from maple.checkpoint.shards import MappedShards, read_shard
from maple.native.library import KernelInfo, available
from maple.native.model import NativeModel, StepSlice
from maple.native.parts import NotForKernels
from maple.native.weights import NativeSource, load_weights

BOUND = 1e-3  # of the golden vectors, for activations in fp32
PROMPT = 2  # the longest

# Which tensors are stored anew: a spelling, and what their names have in common.
KINDS: Mapping[str, tuple[str, str]] = {
    "row scales": ("mlx-2bit", "row_alpha"),
    "group scales": ("grouped", "proj.scales"),
    "group scales and biases": ("grouped", "proj.*es"),
    "fused group scales and biases": ("fused", "proj.*es"),
    "head scales": ("mlx-2bit", "lm_head.scales"),
    "head scales and biases": ("mlx-2bit", "lm_head.*es"),
    "embedding scales and biases": ("mlx-2bit", "model.word_embeddings.*es"),
    "norms": ("mlx-2bit", "norm.weight"),
    "routers": ("mlx-2bit", "mlp.gate.weight"),
    "one router": ("bf16-stacked", "layers.1.mlp.gate.weight"),
    "dense embeddings": ("bf16-stacked", "model.word_embeddings.weight"),
    "dense head": ("bf16-stacked", "lm_head.weight"),
    "dense rows": ("bf16-stacked", "proj.weight"),
    "stacked experts": ("bf16-stacked", "mlp.experts"),
    "one expert": ("bf16-per-expert", "experts.3.up_proj"),
}


@attrs.define
class Stored:
    """A tensor of a file: its dtype in safetensors' spelling and its numbers, bf16 as bits."""

    dtype: str
    numbers: Any

    def floats(self) -> Any:
        if self.dtype != "BF16":
            return self.numbers
        return (self.numbers.astype(np.uint32) << 16).view(np.float32)

    def stored_as(self, dtype: str) -> Stored:
        return Stored(dtype, self.floats().astype({"F16": np.float16, "F32": np.float32}[dtype]))


Tensors = dict[str, Stored]


def rewritten(source: pathlib.Path, target: pathlib.Path, change: Callable[[Tensors], None]) -> pathlib.Path:
    """A copy of a checkpoint in one file, with its tensors changed."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    tensors: Tensors = {}
    for path in source.glob("*.safetensors"):
        shard = read_shard(path)
        files = MappedShards([shard])
        tensors.update({name: Stored(info.dtype, files.view(info)) for name, info in shard.tensors.items()})
    change(tensors)
    header, at = {}, 0
    for name, one in tensors.items():
        end = at + one.numbers.nbytes
        header[name] = {"dtype": one.dtype, "shape": one.numbers.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    data = b"".join(one.numbers.tobytes() for one in tensors.values())
    (target / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return target


def in_groups(tensors: Tensors) -> None:
    """Row scales as scales and biases of groups of 64 columns."""
    for name in [name for name in tensors if name.endswith("row_alpha")]:
        stem = name.removesuffix(".row_alpha")
        groups = tensors[f"{stem}.weight"].numbers.shape[-1] // 4
        scales = np.repeat(tensors.pop(name).numbers[..., None], groups, axis=-1)
        tensors[f"{stem}.scales"] = Stored("BF16", scales)
        tensors[f"{stem}.biases"] = Stored("BF16", scales ^ np.uint16(0x8000))


def fused(tensors: Tensors) -> None:
    """Grouped, with q, k and v in one tensor, and up and gate of all experts in another."""
    in_groups(tensors)
    stacks = {
        "self_attn.qkv_proj": ("self_attn.{}_proj", "qkv"),
        "mlp.switch_mlp.up_gate_proj": ("mlp.switch_mlp.{}_proj", ("up", "gate")),
    }
    for i in range(4):
        for stack, (pattern, parts) in stacks.items():
            for field in ("weight", "scales", "biases"):
                taken = [tensors.pop(f"model.layers.{i}.{pattern.format(part)}.{field}") for part in parts]
                rows = np.concatenate([each.numbers for each in taken], axis=-2)
                tensors[f"model.layers.{i}.{stack}.{field}"] = Stored(taken[0].dtype, rows)


def matches(name: str, pattern: str) -> bool:
    """Whether a name has both ends of ``a*b`` in their order."""
    first, _, last = pattern.partition("*")
    return first in name and name.endswith(last)


def stored_as(dtype: str, pattern: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        names = [name for name, one in tensors.items() if one.dtype != "U32" and matches(name, pattern)]
        assert names
        for name in names:
            tensors[name] = tensors[name].stored_as(dtype)

    return change


@pytest.fixture
def checkpoint(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """``checkpoint(spelling, change)``: a golden checkpoint with its tensors changed."""

    def make(spelling: str, *changes: Callable[[Tensors], None]) -> pathlib.Path:
        first = {"grouped": [in_groups], "fused": [fused]}.get(spelling, [])

        def change(tensors: Tensors) -> None:
            for each in [*first, *changes]:
                each(tensors)

        return rewritten(golden_folder / ("mlx-2bit" if first else spelling), tmp_path / "stored", change)

    return make


@pytest.fixture(scope="session")
def ids(golden_folder: pathlib.Path) -> list[int]:
    prompts: list[list[int]] = json.loads((golden_folder / "prompts.json").read_text())["prompts"]
    return prompts[PROMPT]


@pytest.fixture(scope="session")
def golden(golden_folder: pathlib.Path, ids: list[int]) -> Callable[[str], Any]:
    """``golden(spelling)``: logits of the golden checkpoint as it was handed, a 4-bit head unrounded."""

    def logits(spelling: str) -> Any:
        folder = spelling if spelling.startswith("bf16") else "mlx-2bit"
        return Reference(golden_folder / folder, head="exact").logits(ids)

    return logits


def native_logits(folder: pathlib.Path, ids: list[int]) -> Any:
    """Logits of a whole text, activations in fp32."""
    loaded = load_weights(NativeSource(source=str(folder)), progress=lambda _: None, cancelled=lambda: False)
    with NativeModel(loaded.shape, loaded.weights, threads=1, activations="fp32", kv_blocks=2) as model:
        return model.step(
            [StepSlice(tokens=ids, start=0, blocks=[0, 1], sliding_blocks=[0, 1], logits=len(ids))]
        )


def torch_logits(folder: pathlib.Path, ids: list[int], **options: Any) -> Any:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # the model is tiny: a second thread only waits for the first
    from maple.torch_model.load import LoadOptions, load

    loaded = load(LoadOptions(source=str(folder), device="cpu", **options), progress=lambda _: None)
    with torch.inference_mode():
        return loaded.model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


kernels = pytest.mark.skipif(not isinstance(available(), KernelInfo), reason="the kernels are not built here")


@kernels
@pytest.mark.parametrize("dtype", ["F16", "F32"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_read_numbers_in_any_dtype(
    kind: str, dtype: str, checkpoint: Any, golden: Any, ids: list[int]
) -> None:
    """The same numbers stored in a wider dtype give the golden logits."""
    spelling, pattern = KINDS[kind]
    folder = checkpoint(spelling, stored_as(dtype, pattern))
    assert np.abs(native_logits(folder, ids) - golden(spelling)).max() < BOUND


@pytest.mark.parametrize("packed", ["true", "false"])
@pytest.mark.parametrize("dtype", ["F16", "F32"])
@pytest.mark.parametrize("kind", KINDS)
def test_torch_reads_numbers_in_any_dtype(
    kind: str, dtype: str, packed: str, checkpoint: Any, golden: Any, ids: list[int]
) -> None:
    """The same numbers stored in a wider dtype give the golden logits, packed or not."""
    spelling, pattern = KINDS[kind]
    folder = checkpoint(spelling, stored_as(dtype, pattern))
    assert np.abs(torch_logits(folder, ids, pack_experts=packed) - golden(spelling)).max() < BOUND


INEXACT: Mapping[str, tuple[str, str]] = {
    "row scales": ("mlx-2bit", "model.layers.1.self_attn.q_proj.row_alpha"),
    "group scales": ("grouped", "model.layers.1.self_attn.q_proj.scales"),
    "head scales": ("mlx-2bit", "lm_head.scales"),
    "embedding biases": ("mlx-2bit", "model.word_embeddings.biases"),
    "dense rows": ("bf16-stacked", "model.layers.1.self_attn.q_proj.weight"),
}


def finer(name: str, dtype: str) -> Callable[[Tensors], None]:
    """The numbers of a tensor in a wider dtype, each a little more than bf16 could hold."""

    def change(tensors: Tensors) -> None:
        one = tensors[name].stored_as(dtype)
        tensors[name] = Stored(dtype, one.numbers * one.numbers.dtype.type(1 + 2**-10))

    return change


@kernels
@pytest.mark.parametrize("dtype", ["F16", "F32"])
@pytest.mark.parametrize("kind", INEXACT)
def test_what_bf16_does_not_hold_goes_to_torch(
    kind: str, dtype: str, checkpoint: Any, ids: list[int]
) -> None:
    """The kernels refuse it in one line that names tensor and dtype; torch computes with what is stored."""
    spelling, name = INEXACT[kind]
    folder = checkpoint(spelling, finer(name, dtype))
    with pytest.raises(NotForKernels, match=rf"^tensor {name}\b.* dtype {dtype} ") as error:
        native_logits(folder, ids)
    assert "\n" not in str(error.value)
    assert (
        np.abs(torch_logits(folder, ids) - Reference(folder, head="exact").logits(ids)).max() < ROUNDED[kind]
    )


ROUNDED = dict.fromkeys(INEXACT, BOUND) | {
    "embedding biases": 0.15,
    "group scales": 0.15,
}
"""Tables are rounded to the dtype of their scales, which the reference does not follow into float16 and float32."""


@kernels
@pytest.mark.parametrize("name", ["model.layers.2.mlp.gate.expert_bias", "lm_head.flashhead.centroids"])
@pytest.mark.parametrize("dtype", ["F64", "I64", "BOOL"])
def test_what_is_ignored_may_have_any_dtype(
    name: str, dtype: str, checkpoint: Any, golden: Any, ids: list[int]
) -> None:
    """Tensors that no Maple computes with stop neither path, whatever they are stored as."""
    numbers = np.zeros(8, np.dtype({"F64": "f8", "I64": "i8", "BOOL": "?"}[dtype]))
    folder = checkpoint("mlx-2bit", lambda tensors: tensors.update({name: Stored(dtype, numbers)}))
    for logits in native_logits, torch_logits:
        assert np.abs(logits(folder, ids) - golden("mlx-2bit")).max() < BOUND


@kernels
def test_doctor_log_and_health_say_the_same(checkpoint: Any, tmp_path: pathlib.Path) -> None:
    """Where torch takes over, the doctor gives the reason that is logged, and /health names a dtype of torch."""
    pytest.importorskip("torch")
    from maple.choose_engine import model_loader
    from maple.settings import Settings

    name = "model.layers.1.self_attn.q_proj.row_alpha"
    folder = checkpoint("mlx-2bit", finer(name, "F16"))
    with structlog.testing.capture_logs() as lines:
        loaded = model_loader(Settings(model_path=str(folder), device="cpu"))(lambda: False)
    (line,) = [line for line in lines if line["event"] == "engine.kernels_unfit"]
    assert name in line["reason"]
    assert loaded.served.dtype.startswith("float32")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "maple", "doctor", "--port", "0", "--device", "cpu"],
        env={**os.environ, "MAPLE_MODEL_PATH": str(folder), "MAPLE_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    (told,) = [each for each in done.stdout.splitlines() if each.startswith("note  engine")]
    assert line["reason"] in told
