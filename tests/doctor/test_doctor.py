"""``maple doctor``: its checks, its lines and its exit code."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import pytest

from maple.cli.main import main
from maple.configure import BadSetting
from maple.doctor import checks, compute, model
from maple.doctor.check import Check, Finding
from maple.doctor.checks import CHECKS
from maple.doctor.command import examine, line, settle
from maple.doctor.places import CacheCheck
from maple.native.library import KernelInfo, Unavailable
from maple.settings import Settings


def find(check: type[Check], **settings: Any) -> Finding:
    return check(Settings(**settings)).run()


def test_every_check_finds_something_here(capsys: pytest.CaptureFixture[str]) -> None:
    """``maple doctor`` has a line for every check, and succeeds where the tests run."""
    assert main(["doctor", "--demo", "--port", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for check in CHECKS:
        assert any(f" {check.title} " in line for line in lines)


def test_bad_findings_are_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something will not work the command fails, after telling everything."""

    class Broken(Check):
        title = "teapot"

        def run(self) -> Finding:
            return Finding(level="bad", text="cracked", advice="buy another")

    monkeypatch.setattr(checks, "CHECKS", (Broken, *CHECKS))
    assert main(["doctor", "--demo", "--port", "0"]) == 1
    out = capsys.readouterr().out
    assert "BAD   teapot        cracked" in out
    assert "→ buy another" in out
    assert "python" in out


def test_settings_are_read_as_the_server_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong flag is the same one line, and flags change what is found."""
    assert main(["doctor", "--prt", "1"]) == 2
    assert "did you mean --port?" in capsys.readouterr().err
    assert "as device" in find(compute.EngineCheck, dtype="float32").text


def test_an_address_and_a_servers_flags_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """With --url another server is looked at, which has settings of its own."""
    assert main(["doctor", "--url", "http://127.0.0.1:1", "--demo"]) == 2
    assert "leave out --url" in capsys.readouterr().err


def test_wrong_variables_are_findings_and_wrong_flags_are_not() -> None:
    """The rest is looked at without the variable; a flag was typed just now."""
    settings, faults = settle({"MAPLE_PORT": "x", "MAPLE_MAX_BATCH": "3"}, {})
    assert settings == Settings(max_batch=3)
    assert [fault.level for fault in faults] == ["bad"]
    with pytest.raises(BadSetting):
        settle({}, {"port": "x"})


def test_missing_kernels_say_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels the doctor says why, what is lost and what to do; torch then has to be there."""
    monkeypatch.setattr(compute, "available", lambda: Unavailable("no library"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    kernels, engine, torch = (
        find(check, device="cpu") for check in (compute.KernelCheck, compute.EngineCheck, compute.TorchCheck)
    )
    assert (kernels.level, engine.level, torch.level) == ("note", "note", "bad")
    assert "no library" in kernels.text
    assert "maple.native.build" in kernels.advice
    assert torch.advice == "pip install torch transformers"


def test_present_kernels_say_which_path_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that runs comes first, the others in its reason; torch is then only a note."""
    info = KernelInfo(library=pathlib.Path("lib.so"), paths=("avx2", "scalar"))
    monkeypatch.setattr(compute, "available", lambda: info)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = find(compute.KernelCheck)
    assert found.text.startswith("avx2:")
    assert "scalar" in found.text
    assert find(compute.TorchCheck, device="cpu").level == "note"


def test_portable_kernels_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the processor offers, or a virtual machine shows, no vector instructions."""
    info = KernelInfo(library=pathlib.Path("lib.so"), paths=("scalar",))
    monkeypatch.setattr(compute, "available", lambda: info)
    found = find(compute.KernelCheck)
    assert found.level == "note"
    assert "-cpu host" in found.advice


@pytest.mark.parametrize(
    ("free", "total", "level"), [(20e9, 24e9, "good"), (3e9, 24e9, "note"), (3e9, 4e9, "bad")]
)
def test_memory_is_held_against_the_full_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, free: float, total: float, level: str
) -> None:
    """A model that is still on the hub counts as Maple-Preview; the embedded one needs next to nothing."""
    monkeypatch.setattr(model, "available_bytes", lambda: int(free))
    monkeypatch.setattr(model, "total_bytes", lambda: int(total))
    assert find(model.MemoryCheck, model_path="nobody/has-this").level == level
    assert find(model.MemoryCheck, demo=True).level == "good"


def test_the_cache_folder_is_looked_at_but_not_made(tmp_path: pathlib.Path) -> None:
    """A folder that is not there yet is judged by the nearest one that is."""
    assert find(CacheCheck, demo=True, cache_dir=tmp_path / "a" / "b").level == "good"
    assert list(tmp_path.iterdir()) == []


def test_a_finding_is_a_line_and_its_advice_another() -> None:
    assert line("a", Finding(level="good", text="x")) == "ok    a             x"
    advised = line("long", Finding(level="note", text="y", advice="z"))
    assert advised == "note  long          y\n                    → z"


def test_checks_are_told_in_the_order_given() -> None:
    told = examine(CHECKS, Settings(demo=True, port=0))
    assert [title for title, _ in told] == [check.title for check in CHECKS]
