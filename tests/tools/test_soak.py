"""The soak, a few rounds of it: what twenty minutes look for at length is looked for in each test run."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from maple_testing.guard import HANG_GUARD

SOAK = pathlib.Path(__file__).parents[2] / "tools" / "soak.py"


def test_a_mixed_load_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
    """Chats left midway, hostile bodies, sessions, SIGHUPs, a kept lock and a full disk: all is given back."""
    picture = tmp_path / "soak.svg"
    command = [sys.executable, str(SOAK), "--rounds", "4", "--report", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_GUARD, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert picture.read_text().count("<polyline ") == 4
