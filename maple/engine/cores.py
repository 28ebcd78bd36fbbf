"""How many threads compute, and for how many sequences at a time."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

_SYSTEM = pathlib.Path("/")
USEFUL_CONTEXT = 8192
"""Tokens that each of several sequences should have room for: an agent's first prompt, and some turns."""
_SLOTS_A_CORE = 4
MOST_SLOTS = 32


def most_slots(cores: int | None = None) -> int:
    """How many sequences are worth running together on so many cores, by default the machine's; at most 32."""
    return min(MOST_SLOTS, _SLOTS_A_CORE * (physical_cores() if cores is None else cores))


def physical_cores() -> int:
    """Cores this process may use: hyper-threads counted once, and no more than its control group has time for."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        name = str(cpu)
        with contextlib.suppress(OSError):  # no such file off Linux and in some containers
            name = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        siblings.add(name)
    return max(1, min(len(siblings), int(cpu_quota() or len(siblings))))


def cpu_quota(system: pathlib.Path = _SYSTEM) -> float | None:
    """Processors' worth of time that this process's control groups allow, the least of them; None without a limit.

    A container with 2 of 64 processors sees all 64: version 2 says so in ``cpu.max``, version 1 in two files.
    """
    limits = []
    for folder in _groups(system):
        with contextlib.suppress(OSError, ValueError):  # no limit in this group, or "max"
            quota, period = _limit(folder)
            if quota > 0 < period:
                limits.append(quota / period)
    return min(limits, default=None)


def _limit(folder: pathlib.Path) -> tuple[int, int]:
    """Microseconds of processor time in so many of the clock."""
    if (folder / "cpu.max").exists():
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota), int(period)
    names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
    quota, period = ((folder / name).read_text() for name in names)
    return int(quota), int(period)


def _groups(system: pathlib.Path) -> Iterator[pathlib.Path]:
    """The process's groups and those above them; inside a container the path may only exist outside of it."""
    root = system / "sys/fs/cgroup"
    try:
        lines = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top = root / "cpu" if controllers else root
        if not controllers or "cpu" in controllers.split(","):
            group = top / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))
