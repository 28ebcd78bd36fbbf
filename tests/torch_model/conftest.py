"""Fixtures of the model tests: the golden vectors, loading in one line, and checkpoints spelled anew."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest
import torch
from maple_testing.engine import quiet
from safetensors.torch import load_file, save_file

from maple.torch_model.load import LoadedModel, LoadOptions, load

Tensors = dict[str, torch.Tensor]

# The models are tiny: a second thread only waits for the first, and on a busy machine it waits long.
torch.set_num_threads(1)


@attrs.frozen(kw_only=True)
class Golden:
    """The handed vectors: prompts, their fp64 logits by family, and a greedy continuation of one prompt."""

    prompts: list[list[int]]
    logits: Mapping[str, torch.Tensor]
    greedy_prompt: int
    greedy: list[int]

    def reference(self, spelling: str, prompt: int) -> torch.Tensor:
        """Logits [tokens, vocabulary] of a float64 evaluation, a 4-bit head unrounded."""
        name = f"mlx2bit.{prompt}.exact" if spelling == "mlx-2bit" else f"bf16.{prompt}.fp64"
        return self.logits[name]


@pytest.fixture(scope="session")
def golden(golden_folder: pathlib.Path) -> Golden:
    """The golden vectors."""
    content = json.loads((golden_folder / "prompts.json").read_text())
    return Golden(
        prompts=content["prompts"],
        logits={
            **load_file(golden_folder / "golden.safetensors"),
            **load_file(golden_folder.parent / "exact_head.safetensors"),
        },
        greedy_prompt=content["greedy"]["prompt"],
        greedy=content["greedy"]["continuation"],
    )


@pytest.fixture(scope="session")
def load_model() -> Callable[..., LoadedModel]:
    """Load a folder with options given by name."""

    def run(source: pathlib.Path | str, **options: Any) -> LoadedModel:
        return load(LoadOptions(source=str(source), **options), progress=quiet)

    return run


@attrs.frozen
class Folder:
    """A copy of a golden folder that a test may take apart."""

    path: pathlib.Path

    @property
    def weights(self) -> pathlib.Path:
        """The single weight file."""
        return self.path / "model.safetensors"

    def tensors(self) -> Tensors:
        """Everything in the single weight file, in memory."""
        return {name: tensor.clone() for name, tensor in load_file(self.weights).items()}

    def write(self, tensors: Tensors) -> None:
        """Replace the weight file."""
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, self.weights)

    def edit(self, change: Callable[[Tensors], None]) -> None:
        """Replace the weight file by what ``change`` makes of its tensors."""
        tensors = self.tensors()
        change(tensors)
        self.write(tensors)

    def edit_config(self, **fields: Any) -> None:
        """Set fields of config.json; None removes one."""
        path = self.path / "config.json"
        content = json.loads(path.read_text()) | fields
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.fixture
def copy_of(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> Callable[[str], Folder]:
    """A fresh copy of one golden folder, under the same last name."""

    def run(spelling: str) -> Folder:
        path = tmp_path / "copies" / spelling
        shutil.copytree(golden_folder / spelling, path)
        return Folder(path)

    return run
