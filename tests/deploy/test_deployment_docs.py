"""What the pages on deployment, operations and troubleshooting tell people to type."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from maple_testing.guard import HANG_GUARD

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ("deployment.md", "operations.md", "troubleshooting.md")


def _commands() -> Iterator[str]:
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for block in re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            yield block.strip()


@pytest.mark.parametrize("command", list(_commands()))
def test_commands_work(command: str) -> None:
    """From the repository's root, with the package's own Python first; those for root or a cluster are not bash."""
    program = command.partition(" ")[0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_page_says_what_systemd_says(deploy_folder: pathlib.Path) -> None:
    """The exposure level in the text is the unit's."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    command = [
        "systemd-analyze",
        "security",
        "--offline=true",
        "--no-pager",
        str(deploy_folder / "maple.service"),
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    score = re.search(r"exposure level for maple.service: ([\d.]+)", told)
    assert score
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    stated = re.search(r"own score is ([\d.]+)\s+of\s+10", text)
    assert stated
    assert abs(float(stated[1]) - float(score[1])) <= 0.2  # releases of systemd differ a little
