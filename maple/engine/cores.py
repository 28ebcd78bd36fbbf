"""How many threads compute."""

from __future__ import annotations

import contextlib
import os
import pathlib

__all__ = ["physical_cores"]


def physical_cores() -> int:
    """Cores this process may use, hyper-threads counted once where the system tells them apart."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in usable:
        name = str(cpu)
        with contextlib.suppress(OSError):  # no such file off Linux and in some containers
            name = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        siblings.add(name)
    return len(siblings)
