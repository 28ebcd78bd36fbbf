"""Which loader the settings and the machine choose."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest
import structlog

from maple import choose_engine as module
from maple.choose_engine import choose, choose_loader, model_loader, model_source
from maple.native.library import KernelInfo, Unavailable
from maple.settings import Settings

KERNELS = KernelInfo(library=pathlib.Path("lib.so"), paths=("scalar",))
MISSING = Unavailable("the kernels are not built")


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has, the tests say it has none."""
    monkeypatch.setattr(module, "_ACCELERATORS", ())


@pytest.mark.parametrize(
    "settings",
    [
        Settings(device="cuda"),
        Settings(device="mps"),
        Settings(dtype="float32"),
        Settings(device="cpu", pack_experts="false"),
    ],
)
@pytest.mark.parametrize("kernels", [KERNELS, MISSING])
def test_torch_serves_what_only_it_can(settings: Settings, kernels: Any) -> None:
    """Another device or type, or dense experts, are torch's; then nothing is missing."""
    choice = choose(settings, kernels)
    assert (choice.path, choice.reason) == ("torch", "")


@pytest.mark.parametrize("settings", [Settings(), Settings(device="cpu"), Settings(pack_experts="true")])
def test_the_kernels_serve_the_rest(settings: Settings) -> None:
    assert choose(settings, KERNELS).path == "native"


def test_an_accelerator_is_torchs(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Where an accelerator's driver is, torch decides, unless the CPU is asked for."""
    monkeypatch.setattr(module, "_ACCELERATORS", (str(tmp_path),))
    assert choose(Settings(), KERNELS).path == "torch"
    assert choose(Settings(device="cpu"), KERNELS).path == "native"


def test_missing_kernels_are_one_line_with_a_way_out() -> None:
    """The line says why they are missing, what is lost and what to do; it is logged once."""
    chosen: list[Any] = []
    torch: Any = object()
    with structlog.testing.capture_logs() as lines:
        chosen.append(
            choose_loader(
                Settings(), native=lambda: pytest.fail("native"), torch=lambda: torch, kernels=MISSING
            )
        )
    assert chosen == [torch]
    (line,) = lines
    assert line["event"] == "engine.kernels_missing"
    assert line["reason"] == "the kernels are not built"
    assert "slower" in line["advice"]
    assert "maple.native.build" in line["advice"]


def test_nothing_is_said_when_nothing_is_missing() -> None:
    native: Any = object()
    with structlog.testing.capture_logs() as lines:
        assert (
            choose_loader(
                Settings(), native=lambda: native, torch=lambda: pytest.fail("torch"), kernels=KERNELS
            )
            is native
        )
    assert lines == []


def test_choosing_imports_no_torch() -> None:
    """A server's start does not wait for torch to learn that it is not needed."""
    code = "import sys, maple.choose_engine, maple.native.loader; sys.exit('torch' in sys.modules)"
    root = pathlib.Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (Settings(dtype="float32", kv_dtype="int8"), [["MAPLE_KV_DTYPE"]]),
        (Settings(dtype="float32", activations="fp32"), [["MAPLE_ACTIVATIONS"]]),
        (Settings(dtype="float32"), []),
    ],
)
def test_what_torch_does_not_do_is_said(settings: Settings, told: list[list[str]]) -> None:
    """Settings of the kernels alone are named where torch serves."""
    with structlog.testing.capture_logs() as lines:
        model_loader(settings)
    assert [line["variables"] for line in lines] == told


@pytest.mark.parametrize(
    ("settings", "here", "wanted"),
    [
        (Settings(), [], "maple-preview-2bit-mlx"),
        (Settings(device="cpu"), [], "maple-preview-2bit-mlx"),
        (Settings(), ["maple-preview"], "maple-preview"),
        (Settings(), ["maple-preview", "maple-preview-2bit-mlx"], "maple-preview-2bit-mlx"),
        (Settings(device="cuda"), ["maple-preview-2bit-mlx"], "maple-preview"),
        (Settings(model_path="deepgrove/maple-preview"), ["maple-preview-2bit-mlx"], "maple-preview"),
        (Settings(revision="v2"), ["maple-preview"], "maple-preview-2bit-mlx"),
    ],
)
def test_without_a_name_the_smallest_is_fetched(
    settings: Settings,
    here: list[str],
    wanted: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU two bits a weight, unless the bf16 weights alone are in the hub's cache, at that revision."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in here:
        folder = tmp_path / f"models--deepgrove--{name}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("a" * 40)
        (folder / "snapshots" / ("a" * 40)).mkdir(parents=True)
        (folder / "snapshots" / ("a" * 40) / "config.json").write_text("{}")
    assert model_source(settings) == f"deepgrove/{wanted}"


def test_an_accelerator_gets_the_weights_as_they_were_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Torch reads bf16 there; nothing is unpacked."""
    monkeypatch.setattr(module, "_ACCELERATORS", (str(tmp_path),))
    assert model_source(Settings()) == "deepgrove/maple-preview"
