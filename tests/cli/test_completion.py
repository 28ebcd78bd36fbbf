"""``maple completion``, by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from maple.cli.main import main
from maple.settings import flag_name, specs


def completed(script: str, *words: str) -> set[str]:
    """What bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    ask = f'{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _maple; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bash_completes_commands_flags_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    """Commands first, then every setting's flag, then the words that a flag takes."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "maple", "ch") == {"chat"}
    assert completed(script, "maple", "serve", "--max-q") == {"--max-queue-depth"}
    assert completed(script, "maple", "--dtype", "b") == {"bfloat16"}
    assert completed(script, "maple", "chat", "--tool") == {"--tool-parser", "--tools"}
    assert completed(script, "maple", "pack", "a", "b", "--r") == {"--revision"}
    assert completed(script, "maple", "--preload", "t") == {"true"}
    assert completed(script, "maple", "--device", "") == {"auto", "cpu", "cuda", "mps"}
    assert completed(script, "maple", "help", "par") == {"parsers"}
    assert completed(script, "maple", "completion", "") == {"bash", "zsh", "fish"}
    assert completed(script, "maple", "serve", "-") == {flag_name(n) for n, s in specs().items() if s.flag}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_well_formed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell reads its own script without complaint, where it is installed."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "--max-queue-depth" in script or "-l max-queue-depth" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, capture_output=True).stderr == ""
