"""The model of many cores: its facts, not its figures."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
from maple_testing.guard import HANG_GUARD

from maple.native.library import Unavailable, available

pytestmark = pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="the kernels, whose chunks are counted, are not built here"
)

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "engine" / "many_cores.py"


def test_more_chunks_never_take_a_smaller_share_of_the_limit() -> None:
    """A row before and one now for each number of threads; no share is above the whole."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=HANG_GUARD, check=True
    )
    shares = [int(share) for share in re.findall(r"(\d+)% of the limit", done.stdout)]
    before, now = shares[::2], shares[1::2]
    assert len(before) == len(now) == 2
    assert all(0 <= old <= new <= 100 for old, new in zip(before, now, strict=True)), done.stdout
