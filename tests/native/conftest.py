"""Golden checkpoints that a test may take apart, byte by byte, without torch."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

from maple.native.library import Unavailable, available

WEIGHTS = "model.safetensors"
BYTES = {"BF16": 2, "F32": 4, "U32": 4, "U8": 1}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the kernels there is nothing here to test."""
    if isinstance(available(), Unavailable):
        here = pathlib.Path(__file__).parent
        for item in items:
            if item.path.parent == here:
                item.add_marker(pytest.mark.skip(reason="the kernels are not built here"))


@attrs.define
class Raw:
    """One tensor as the file has it."""

    dtype: str
    shape: list[int]
    data: bytes


@attrs.frozen
class Folder:
    """A copy of a golden folder."""

    path: pathlib.Path

    def tensors(self) -> dict[str, Raw]:
        raw = (self.path / WEIGHTS).read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        header.pop("__metadata__", None)
        found = {}
        for name, entry in header.items():
            begin, end = (8 + size + at for at in entry["data_offsets"])
            found[name] = Raw(entry["dtype"], entry["shape"], raw[begin:end])
        return found

    def write(self, tensors: dict[str, Raw]) -> None:
        header: dict[str, Any] = {}
        at = 0
        for name, one in tensors.items():
            header[name] = {
                "dtype": one.dtype,
                "shape": one.shape,
                "data_offsets": [at, at + len(one.data)],
            }
            assert len(one.data) == math.prod(one.shape) * BYTES[one.dtype]
            at += len(one.data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        body = b"".join(one.data for one in tensors.values())
        (self.path / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + body)

    def edit(self, change: Callable[[dict[str, Raw]], None]) -> None:
        tensors = self.tensors()
        change(tensors)
        self.write(tensors)

    def edit_words(self, name: str, change: Callable[[Any], None]) -> None:
        """Change a tensor's numbers; bf16 as its bits."""

        def apply(tensors: dict[str, Raw]) -> None:
            one = tensors[name]
            dtype = {"BF16": np.uint16, "U32": np.uint32, "F32": np.float32}[one.dtype]
            numbers = np.frombuffer(one.data, dtype).reshape(one.shape).copy()
            change(numbers)
            one.data = numbers.tobytes()

        self.edit(apply)

    def edit_config(self, **fields: Any) -> None:
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


@pytest.fixture(scope="session")
def prompts(golden_folder: pathlib.Path) -> list[list[int]]:
    content: list[list[int]] = json.loads((golden_folder / "prompts.json").read_text())["prompts"]
    return content
