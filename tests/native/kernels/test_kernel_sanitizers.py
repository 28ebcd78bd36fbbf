"""The kernels under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from maple.native import build

HERE = pathlib.Path(__file__).parent


def runtime(name: str) -> str | None:
    """The sanitizer's library as the compiler finds it, to be loaded before Python."""
    asked = [build.compiler(), f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return found if pathlib.Path(found).is_absolute() else None


def test_no_error_under_address_and_undefined_behaviour_sanitizers(
    tmp_path: pathlib.Path, wide_folder: pathlib.Path
) -> None:
    """Products of odd shapes and whole steps on every path touch no byte that is not theirs."""
    address = runtime("libasan.so")
    if address is None:
        pytest.skip("the compiler comes without libasan")
    flags = (
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
        "-fno-omit-frame-pointer",
        "-g1",
        "-O1",
    )
    library = build.build(tmp_path / build.LIBRARY_NAME, extra=flags)
    environment = {
        **os.environ,
        "LD_PRELOAD": address,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(HERE.parents[2]),
    }
    command = [
        sys.executable,
        str(HERE / "sanitized_run.py"),
        str(library),
        *(str(HERE.parents[1] / "data" / "golden" / spelling) for spelling in ("mlx-2bit", "bf16-stacked")),
        str(wide_folder),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
