from __future__ import annotations

import pathlib
from typing import Any

import pytest

from maple.cli import main
from maple.commands.doctor import examine, report
from maple.doctor import checks as module
from maple.doctor.check import Check, Finding
from maple.doctor.checks import CHECKS
from maple.kernels import KernelInfo, Unavailable
from maple.settings import Settings


def find(check: type[Check], **settings: Any) -> Finding:
    return check(Settings(**settings)).run()


def test_every_check_finds_something_here(capsys: pytest.CaptureFixture[str]) -> None:
    """`maple doctor` has a line for every check, and succeeds where the tests run."""
    assert main(["doctor", "--demo"]) == 0
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

    monkeypatch.setattr(module, "CHECKS", (Broken, *CHECKS))
    assert main(["doctor", "--demo"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["BAD", "teapot", "cracked"]
    assert "→ buy another" in out
    assert "python" in out


def test_settings_are_read_as_the_server_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong flag is the same one line, and flags change what is found."""
    assert main(["doctor", "--prt", "1"]) == 2
    assert "did you mean --port?" in capsys.readouterr().err
    assert "as device" in find(module.EngineCheck, device="cuda").text


def test_missing_kernels_say_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels the doctor says why, what is lost and what to do; torch then has to be there."""
    monkeypatch.setattr(module, "available", lambda: Unavailable("no library"))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    kernels, engine, torch = (
        find(check) for check in (module.KernelCheck, module.EngineCheck, module.TorchCheck)
    )
    assert (kernels.level, engine.level, torch.level) == ("note", "note", "bad")
    assert "no library" in kernels.text
    assert "maple.kernels.build" in kernels.advice
    assert torch.advice == "pip install torch transformers"


def test_present_kernels_say_which_path_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that runs comes first, the others in its reason; torch is then only a note."""
    info = KernelInfo(library=pathlib.Path("lib.so"), paths=("avx2", "scalar"))
    monkeypatch.setattr(module, "available", lambda: info)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    found = find(module.KernelCheck)
    assert found.text.startswith("avx2:")
    assert "scalar" in found.text
    assert find(module.TorchCheck).level == "note"


@pytest.mark.parametrize(
    ("free", "total", "level"), [(20e9, 24e9, "good"), (3e9, 24e9, "note"), (3e9, 4e9, "bad")]
)
def test_memory_is_held_against_the_full_size(
    monkeypatch: pytest.MonkeyPatch, free: float, total: float, level: str
) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: int(free))
    monkeypatch.setattr(module, "total_bytes", lambda: int(total))
    assert find(module.MemoryCheck).level == level
    assert find(module.MemoryCheck, demo=True).level == "good"


def test_the_cache_folder_is_looked_at_but_not_made(tmp_path: pathlib.Path) -> None:
    """A folder that is not there yet is judged by the nearest one that is."""
    assert find(module.CacheCheck, cache_dir=tmp_path / "a" / "b").level in ("good", "note")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "is a file" in find(module.CacheCheck, cache_dir=tmp_path / "file").text


def test_a_finding_is_a_line_and_its_advice_another() -> None:
    findings = [("a", Finding(level="good", text="x")), ("long", Finding(level="note", text="y", advice="z"))]
    assert report(findings) == "ok    a     x\nnote  long  y\n            → z"


def test_checks_are_told_in_the_order_given() -> None:
    assert [title for title, _ in examine(CHECKS, Settings(demo=True))] == [check.title for check in CHECKS]
