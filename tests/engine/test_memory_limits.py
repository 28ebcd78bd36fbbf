"""How much memory the server believes it has, by control groups of both versions and by the shell."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Mapping

import pytest

from maple.engine import memory

GIB = 1 << 30
UNLIMITED_V1 = str((1 << 63) - 4096)


def plant(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, own: str, files: Mapping[str, str]) -> None:
    """The process's cgroup lines, and files below the mount."""
    (folder / "proc").mkdir()
    (folder / "proc" / "cgroup").write_text(own)
    for name, content in files.items():
        path = folder / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(memory, "_PROCESS", folder / "proc")
    monkeypatch.setattr(memory, "_MOUNT", folder / "mount")


UNIT = "system.slice/maple.service"
CASES = {
    "a container's own mount": ("0::/", {"memory.max": f"{GIB}\n", "memory.current": "0"}, GIB),
    "a unit's own group": (
        f"0::/{UNIT}\n",
        {f"{UNIT}/memory.max": str(GIB), f"{UNIT}/memory.current": "0", f"{UNIT}/memory.high": "max"},
        GIB,
    ),
    "MemoryHigh alone": (
        f"0::/{UNIT}\n",
        {f"{UNIT}/memory.max": "max", f"{UNIT}/memory.high": str(GIB), f"{UNIT}/memory.current": "0"},
        GIB,
    ),
    "a slice above": (
        f"0::/{UNIT}\n",
        {
            "system.slice/memory.max": str(GIB),
            "system.slice/memory.current": "0",
            f"{UNIT}/memory.max": "max",
        },
        GIB,
    ),
    "what is used, but for cached files": (
        "0::/\n",
        {
            "memory.max": str(GIB),
            "memory.current": str(GIB // 2),
            "memory.stat": f"anon 5\ninactive_file {GIB // 4}\n",
        },
        GIB // 2 + GIB // 4,
    ),
    "version 1": (
        f"7:cpu:/\n4:memory,hugetlb:/{UNIT}\n0::/\n",
        {
            f"memory/{UNIT}/memory.limit_in_bytes": str(GIB),
            f"memory/{UNIT}/memory.usage_in_bytes": str(GIB // 2),
            f"memory/{UNIT}/memory.stat": f"total_inactive_file {GIB // 4}\n",
            "memory/memory.limit_in_bytes": UNLIMITED_V1,
        },
        GIB // 2 + GIB // 4,
    ),
    "version 1 in a container, by the host's path": (
        "4:memory:/docker/0123\n",
        {"memory/memory.limit_in_bytes": str(GIB), "memory/memory.usage_in_bytes": "0"},
        GIB,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_tightest_limit_holds(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Its own group's or any above it."""
    own, files, room = CASES[case]
    plant(tmp_path, monkeypatch, own, files)
    assert memory.available_bytes() == room
    assert memory.total_bytes() == GIB


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/\n", {"memory.max": "max\n", "memory.current": "5"}),
        ("0::/\n", {}),
        ("", {}),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": UNLIMITED_V1, "memory/memory.usage_in_bytes": "0"}),
    ],
)
def test_without_a_limit_it_is_the_machines(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, own: str, files: Mapping[str, str]
) -> None:
    """More than this machine is no limit, either."""
    plant(tmp_path, monkeypatch, own, files)
    assert memory.available_bytes() > GIB // 8
    assert memory.total_bytes() >= memory.available_bytes()


def test_the_shells_limit_holds() -> None:
    """``ulimit -v`` counts addresses, those that are in use already included."""
    program = (
        "import resource\n"
        "from maple.engine import memory\n"
        "used = memory._address_space()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))\n"
        "print(memory.available_bytes())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) <= 64 << 20
