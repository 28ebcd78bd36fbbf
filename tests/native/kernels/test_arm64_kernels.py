"""The arm64 kernels, cross-compiled and run in an emulator: every NEON path against the portable one, bit for bit.

An emulated processor shows what instructions compute. It shows neither their speed nor what a weaker memory order
would do to the threads.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from maple_testing.guard import HANG_GUARD

from maple.native import build
from maple.native.packing import PackedMatrix

HERE = Path(__file__).parent
COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
BOUND = {"fp32": 1e-3, "int8x2": 1e-2}  # of test_kernel_golden.py

# A processor without the dot product instructions, and one with them.
PROCESSORS = {"cortex-a72": ["neon", "scalar"], "neoverse-n1": ["neondot", "neon", "scalar"]}


@attrs.frozen
class Emulated:
    """The driver, and how this machine runs it."""

    emulator: str
    root: Path
    driver: Path

    def run(self, processor: str, *arguments: object) -> dict[str, str]:
        """What the driver said, by its first words; it found no difference, or this fails with what differs."""
        command = [self.emulator, "-L", self.root, "-cpu", processor, self.driver, *arguments]
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=HANG_GUARD
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    """The library as the package's build makes it for arm64, and the driver linked with it."""
    if platform.machine() in {"aarch64", "arm64"}:
        pytest.skip("this processor is an arm64: the other tests of the kernels run these paths")
    emulator = next(filter(None, map(shutil.which, EMULATORS)), None)
    if shutil.which(COMPILER) is None or emulator is None:
        pytest.skip(f"needs {COMPILER} and qemu-aarch64 (Debian: g++-aarch64-linux-gnu and qemu-user)")
    folder = tmp_path_factory.mktemp("arm64")
    library = build.build(folder / build.LIBRARY_NAME, cxx=COMPILER, machine="aarch64")
    driver = folder / "driver"
    source = HERE / "arm64_driver.cpp"
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-static-libstdc++", "-static-libgcc")
    subprocess.run([COMPILER, *flags, f"-I{build.SOURCES}", source, library, "-o", driver], check=True)
    asked = subprocess.run(
        [COMPILER, "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True
    )
    return Emulated(emulator, Path(asked.stdout.strip()).resolve().parents[1], driver)


def parts_of(golden: Any, prompt: list[int]) -> Iterator[bytes]:
    """What the driver's ``Model`` takes, in its order."""

    def matrix(packed: PackedMatrix) -> tuple[bytes, bytes]:
        shape = np.array([packed.kind, packed.rows, packed.cols, packed.count], np.int32)
        return shape.tobytes(), packed.data.tobytes()

    def whole(values: npt.NDArray[np.generic] | None) -> bytes:
        return b"" if values is None else values.tobytes()

    def single(values: npt.NDArray[np.generic] | None) -> bytes:
        return whole(None if values is None else values.astype(np.float32))

    with golden.model() as model:
        yield bytes(model.config_struct())
    weights = golden.weights
    yield np.array(prompt, np.int32).tobytes()
    yield np.int32(weights.embedding.kind).tobytes()
    yield from map(whole, (weights.embedding.data, weights.embedding.scales, weights.embedding.biases))
    yield single(weights.final_norm)
    yield from matrix(weights.head)
    for layer, full in zip(weights.layers, golden.shape.full_layers, strict=True):
        yield from map(single, (layer.attention_norm, layer.mlp_norm, layer.q_norm, layer.k_norm))
        for packed in (layer.qkv, layer.output, layer.router, layer.gate_up, layer.down):
            yield from matrix(packed)
        yield np.int32(full).tobytes()


@pytest.mark.parametrize("processor", PROCESSORS)
def test_products_are_the_portable_ones_bit_for_bit(processor: str, emulated: Emulated) -> None:
    """All kinds of weights, activations, odd and real shapes and 1 to 17 tokens, zeros, outliers and NaN among them.

    A token's products do not depend on how many share the call, and the processor's features choose the path.
    """
    said = emulated.run(processor, "products")
    assert set(said["paths"].split()) == set(PROCESSORS[processor])
    assert said["default"] == PROCESSORS[processor][0]
    assert int(said["compared"]) > 1000


@pytest.mark.parametrize(
    ("processor", "spelling"), [("cortex-a72", "bf16-stacked"), ("neoverse-n1", "mlx-2bit")]
)
def test_steps_are_the_portable_ones_and_match_the_golden_logits(
    processor: str, spelling: str, emulated: Emulated, golden_of: Any, tmp_path: Path
) -> None:
    """Whole steps, packed here and run there, are the same bits on all paths for every activation mode, KV dtype and
    cut of the prompt; they are within the golden bounds.
    """
    golden = golden_of(spelling)
    prompt, wanted = golden.prompts[2][:80], golden.logits[2][:80]  # beyond the window and one KV block
    with (tmp_path / "model").open("wb") as out:
        for part in parts_of(golden, prompt):
            out.write(np.int64(len(part)).tobytes())
            out.write(part)
    emulated.run(processor, "steps", tmp_path / "model", tmp_path / "logits")
    logits = np.fromfile(tmp_path / "logits", np.float32).reshape(2, len(prompt), -1)
    for got, mode in zip(logits, BOUND, strict=True):
        assert np.abs(got[:, : golden.shape.vocabulary] - wanted).max() <= BOUND[mode]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_every_unit_of_a_processor_family_is_a_file(machine: str) -> None:
    """A family that no test here compiles for is named without a gap; all have the portable path."""
    names = {unit.source.stem for unit in build.units(machine) if unit.source.is_file()}
    assert len(names) == len(build.units(machine))
    assert "scalar" in names
