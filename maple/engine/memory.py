"""How much memory there is, as far as the system tells."""

from __future__ import annotations

import contextlib
import os
import pathlib

from maple.engine.api import ModelFailed

__all__ = ["available_bytes", "kv_budget", "total_bytes"]

_CGROUP = pathlib.Path("/sys/fs/cgroup")
_KV_SHARE = 0.8
"""Of the memory that is free once the weights are there."""


def total_bytes() -> int:
    """Memory of the machine, or of the container where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup_number("memory.max")
    return total if limit is None else min(total, limit)


def available_bytes() -> int:
    """Memory that can be had without swapping; files that are only cached count as free."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) << 10
    limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    if limit is None or used is None:
        return free
    return max(0, min(free, limit - used + _cgroup_file_bytes()))


def _cgroup_number(name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int((_CGROUP / name).read_text())
    return None


def _cgroup_file_bytes() -> int:
    """Bytes of files that the container's memory holds and would give up."""
    with contextlib.suppress(OSError, ValueError):
        for line in (_CGROUP / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                return int(value)
    return 0


def kv_budget(kv_cache_mb: int | None, free: int, mapped: int = 0) -> int:
    """Bytes that KV caches may take; raises ModelFailed where more is asked for than is free.

    ``mapped`` bytes of weights are files' pages, which count as free, but are read in every step.
    """
    if kv_cache_mb is None:
        return int(max(0, free - mapped) * _KV_SHARE)
    if kv_cache_mb << 20 > free:
        raise ModelFailed(f"MAPLE_KV_CACHE_MB={kv_cache_mb} is more than the {free >> 20} MiB that are free")
    return kv_cache_mb << 20
