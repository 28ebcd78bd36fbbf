"""The command line: its commands, their flags, and what mistakes are told."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from maple import __version__
from maple.cli.main import main, program
from maple.native.library import Unavailable, available


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """``maple --help`` is at most 24 lines of 100 characters."""
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert any("--demo" in line for line in lines)


def test_serve_help_lists_every_setting() -> None:
    """Every setting with a flag is in ``maple serve --help``, with its help."""
    text = program()[1]["serve"].format_help()
    assert "--max-queue-depth" in text
    assert "--api-key-file" in text
    assert "--api-key " not in text


def test_serve_help_is_not_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    """``maple serve --help`` is the list that the overview promises."""
    with pytest.raises(SystemExit) as done:
        main(["serve", "--help"])
    assert done.value.code == 0
    assert "--max-queue-depth" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == f"maple {__version__}\n"


def test_version_and_config_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """--json says the same in JSON."""
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == __version__
    assert main(["config", "--json", "--demo", "--port", "9"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["port"] == {"value": "9", "from": "flag"}
    assert shown["host"]["from"] == "default"
    assert shown["served"]["model"].startswith("maple-sapling")
    assert shown["served"]["engine"] in ("native", "torch")


def test_help_for_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """``maple help chat`` is ``maple chat --help``."""
    with pytest.raises(SystemExit):
        main(["help", "chat"])
    assert "maple chat" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["srve"], "did you mean serve?"),
        (["zzz"], "use one of"),
        (["run"], "did you mean serve?"),
        (["ps"], "did you mean top?"),
        (["config", "--prt", "1"], "did you mean --port?"),
        (["config", "--port"], "expected one argument"),
        (["config", "--port", "x"], "--port='x' is not valid"),
        (["pack", "a", "b", "--frce"], "did you mean --force?"),
        (["version", "now"], "unknown argument 'now'"),
        (["completion", "tcsh"], "invalid choice"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong command line says what was meant, on one line."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert hint in captured.err
    assert captured.err.count("\n") == 1


def test_config_prints_values_and_sources(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``maple config`` shows every setting, and never a key."""
    monkeypatch.setenv("MAPLE_API_KEY", "hunter2")
    monkeypatch.setenv("MAPLE_HOST", "::1")
    assert main(["config", "--port", "1", "--strict-model"]) == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert rows["MAPLE_PORT"] == ["1", "flag"]
    assert rows["MAPLE_HOST"] == ["::1", "environment"]
    assert rows["MAPLE_API_KEY"] == ["set", "environment"]
    assert rows["MAPLE_STRICT_MODEL"] == ["true", "flag"]
    assert rows["MAPLE_ALLOWED_ORIGINS"] == ["empty", "default"]
    assert rows["--demo"] == ["false", "default"]


def test_parsers_lists_the_built_in_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """``maple parsers`` names each parser with its distribution."""
    assert main(["parsers"]) == 0
    out = capsys.readouterr().out
    for name in ("think", "maple", "hermes", "qwen_xml", "mistral", "llama_json"):
        assert name in out
    assert "maple-server" in out


NOBODY = """
import os, sys
os.environ.pop("HOME", None)
os.getuid = lambda: 3_000_000_000
from maple.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def as_nobody(folder: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command for a user whom nobody knows, without HOME: as a container with a bare ``user:`` runs it."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("MAPLE_", "XDG_"))}
    return subprocess.run(
        [sys.executable, "-c", NOBODY, *words], cwd=folder, env=clean, capture_output=True, text=True
    )


def test_a_user_without_a_home_is_served(tmp_path: pathlib.Path) -> None:
    """Nothing is kept for the next start, which is a note, and no folder is made for it."""
    pytest.importorskip(
        "torch", reason="without it and the kernels the doctor finds nothing that could serve"
    )
    told = as_nobody(tmp_path, "doctor", "--demo", "--port", "0")
    assert (told.returncode, told.stderr) == (0, "")
    assert "note  cache folder  none, since no home folder is known" in told.stdout
    served = as_nobody(tmp_path, "--demo", "--host", "256.256.256.256", "--port", "0")
    assert served.returncode == 1
    assert "settings.no_cache_folder" in served.stderr
    assert served.stderr.splitlines()[-1].startswith("maple: cannot listen on 256.256.256.256")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["pack", "~/x", "packed"], ["bench", "~/x"]])
def test_a_model_below_a_home_that_nobody_knows_is_one_line(tmp_path: pathlib.Path, words: list[str]) -> None:
    """Shells leave ``~`` as it is where they know no home either."""
    pytest.importorskip(
        "safetensors", reason="the commands read a model, which the short lists install nothing for"
    )
    if isinstance(available(), Unavailable):
        pytest.skip("both commands are the kernels', and say first that these are not built")
    told = as_nobody(tmp_path, *words)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.splitlines()[-1:] == ["maple: no home folder is known for ~/x: use a path without ~"]
    assert "Traceback" not in told.stderr
