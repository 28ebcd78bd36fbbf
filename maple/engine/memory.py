"""How much memory there is, as far as the system tells: the machine's, and what its control groups and shell allow."""

from __future__ import annotations

import contextlib
import os
import pathlib
import resource
from collections.abc import Iterator

import attrs

from maple.engine.errors import ModelFailed

_MOUNT = pathlib.Path("/sys/fs/cgroup")
_KV_SHARE = 0.8
"""Of the memory that is free once the weights are there."""
_PROCESS = pathlib.Path("/proc/self")


@attrs.frozen
class _Names:
    """What a version of control groups calls its files. ``limits``: beyond any of them memory is taken away."""

    limits: tuple[str, ...]
    used: str
    cached: str


_V1 = _Names(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Names(("memory.max", "memory.high"), "memory.current", "inactive_file")


def total_bytes() -> int:
    """Memory of the machine, or of the tightest control group where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(
        [total, *(limit for folder, names in _groups() if (limit := _limit(folder, names)) is not None)]
    )


def available_bytes(*, addresses: int = 1) -> int:
    """Memory that can be had without swapping; files that are only cached count as free.

    ``addresses``: bytes of address space that go with each, where the shell limits them.
    """
    rooms = [_machine_room(), *(room for each in _groups() if (room := _room(*each)) is not None)]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        rooms.append((soft - _address_space()) // addresses)
    return max(0, min(rooms))


def _machine_room() -> int:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def _address_space() -> int:
    with contextlib.suppress(OSError):
        return int((_PROCESS / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _groups() -> Iterator[tuple[pathlib.Path, _Names]]:
    """The process's own control group for memory and all above it. In a container the mount is its own, whatever
    path the host gives it.
    """
    with contextlib.suppress(OSError):
        for line in (_PROCESS / "cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                yield from ((folder, _V2) for folder in _upwards(_MOUNT, path))
            elif "memory" in controllers.split(","):
                yield from ((folder, _V1) for folder in _upwards(_MOUNT / "memory", path))


def _upwards(mount: pathlib.Path, path: str) -> Iterator[pathlib.Path]:
    own = mount / path.lstrip("/")
    return (folder for folder in (own, *own.parents) if folder.is_relative_to(mount))


def _limit(folder: pathlib.Path, names: _Names) -> int | None:
    found = [number for name in names.limits if (number := _number(folder / name)) is not None]
    return min(found, default=None)


def _room(folder: pathlib.Path, names: _Names) -> int | None:
    limit, used = _limit(folder, names), _number(folder / names.used)
    return None if limit is None or used is None else limit - used + _cached(folder, names)


def _number(file: pathlib.Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # missing, or "max"
        return int(file.read_text())
    return None


def _cached(folder: pathlib.Path, names: _Names) -> int:
    """Bytes of files that the group's memory holds and would give up."""
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == names.cached:
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
