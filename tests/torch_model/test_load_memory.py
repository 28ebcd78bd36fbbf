"""How much memory a load takes at most."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from maple_testing.guard import HANG_GUARD
from safetensors.torch import save_file

from maple.torch_model.configuration import MapleConfig

# Peaks are counted from where the imports end; the resident size then falls and rises with what is read.
SCRIPT = """
import json, pathlib, resource, sys
from maple.checkpoint import shards
from maple.torch_model.load import LoadOptions, load
shards._REOPEN_AFTER = 16 << 20
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
before = peak()
loaded = load(LoadOptions(source=sys.argv[1]), progress=lambda p: None)
print(json.dumps([peak() - before, loaded.bytes, loaded.packed_tensors]))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A bf16 checkpoint of 320 MB in one file, whose experts pack into 38 MB."""
    folder = tmp_path_factory.mktemp("large") / "maple-medium"
    config = MapleConfig(
        vocab_size=2048,
        hidden_size=512,
        moe_intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=200,
        eos_token_id=1,
        architectures=["MapleForCausalLM"],
    )
    config.save_pretrained(folder)
    tensors = {
        name: torch.ones(2048, 512).bfloat16() for name in ("model.word_embeddings.weight", "lm_head.weight")
    }
    tensors["model.norm.weight"] = torch.ones(512).bfloat16()
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        shapes = {"q": (512, 512), "k": (256, 512), "v": (256, 512), "o": (512, 512)}
        for name, shape in shapes.items():
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = torch.ones(shape).bfloat16()
        for name in ("gate", "up", "down"):
            stacked = (200, 512, 256) if name == "down" else (200, 256, 512)
            signs = torch.randint(-1, 2, stacked, dtype=torch.int8)
            tensors[f"{prefix}.mlp.experts.{name}_proj"] = signs.to(torch.bfloat16)
        for name, size in (("self_attn.q_norm", 128), ("self_attn.k_norm", 128)):
            tensors[f"{prefix}.{name}.weight"] = torch.ones(size).bfloat16()
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{name}.weight"] = torch.ones(512).bfloat16()
        tensors[f"{prefix}.mlp.gate.weight"] = torch.ones(200, 512).bfloat16()
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.skipif(
    not pathlib.Path("/proc/self/status").exists(), reason="reads the peak from Linux's /proc"
)
def test_a_float_checkpoint_passes_through_without_being_held(large: pathlib.Path) -> None:
    """Loading takes little more than the packed weights and the tensor being read, not the file's size."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(large)],
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
    )
    assert done.returncode == 0, done.stderr
    grown, held, packed = json.loads(done.stdout.splitlines()[-1])
    size = (large / "model.safetensors").stat().st_size
    assert packed == 14
    assert held < size / 6
    assert grown < size / 2
