"""The checks, in the order in which they are told."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import shutil
import sys

import platformdirs

from maple.doctor.check import Check, Finding, Level
from maple.engine.choose import Wishes, choose
from maple.engine.memory import available_bytes, total_bytes
from maple.engine.runner import physical_cores
from maple.kernels import KernelInfo, available
from maple.kernels.build import CompilerMissing, compiler

__all__ = ["CHECKS"]

_FULL_SIZE = 5_350_000_000
"""Bytes of Maple-Preview at two bits a weight."""

_COMFORTABLE = 6_500_000_000
"""With KV cache and everything else."""

_FEATURES = ("avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "asimddp", "i8mm")


class PythonCheck(Check):
    """The interpreter."""

    title = "python"

    def run(self) -> Finding:
        """Its version and where it is."""
        words = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
        return Finding(level="good", text=f"{words}, {sys.executable}")


class ProcessorCheck(Check):
    """Cores, and the instructions that kernels are written for."""

    title = "processor"

    def run(self) -> Finding:
        """As the system names them."""
        threads = self.settings.torch_threads or physical_cores()
        found = [name for name in _FEATURES if name in _processor_flags()]
        words = ", ".join(found) or "none of the vector instructions that kernels are written for"
        return Finding(level="good", text=f"{physical_cores()} cores, {threads} threads; {words}")


def _processor_flags() -> frozenset[str]:
    """The flags that Linux lists; none elsewhere."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.partition(":")[2].split())


class KernelCheck(Check):
    """The native kernels."""

    title = "kernels"

    def run(self) -> Finding:
        """Which path runs and why, or why none does."""
        kernels = available()
        if not isinstance(kernels, KernelInfo):
            return Finding(
                level="note",
                text=f"{kernels.reason}; torch computes instead, many times slower",
                advice="install g++ or clang, then run python -m maple.kernels.build",
            )
        others = ", ".join(kernels.paths[1:])
        why = f"the fastest of what was built and this processor runs ({', '.join(kernels.paths)})"
        return Finding(
            level="good", text=f"{kernels.path}: {why if others else 'the only one that runs here'}"
        )


class EngineCheck(Check):
    """Which engine the settings choose."""

    title = "engine"

    def run(self) -> Finding:
        """The native kernels or torch."""
        settings = self.settings
        wishes = Wishes(device=settings.device, dtype=settings.dtype, pack_experts=settings.pack_experts)
        choice = choose(wishes, available())
        if choice.path == "native":
            return Finding(level="good", text=f"native kernels, {settings.activations} activations")
        if choice.reason:
            return Finding(level="note", text="torch, since the kernels are missing", advice=choice.advice)
        return Finding(level="good", text="torch, as device, dtype or pack_experts ask for")


class CompilerCheck(Check):
    """A C++ compiler, which only building the kernels needs."""

    title = "compiler"

    def run(self) -> Finding:
        """The one that a build would take."""
        try:
            return Finding(level="good", text=compiler())
        except CompilerMissing as error:
            return Finding(level="note", text="none, so kernels cannot be built here", advice=str(error))


class TorchCheck(Check):
    """Torch and Transformers, which the native path does without. Neither is imported: that takes seconds."""

    title = "torch"

    def run(self) -> Finding:
        """Their versions."""
        missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
        if missing:
            text = f"{' and '.join(missing)} not installed"
            if isinstance(available(), KernelInfo):
                return Finding(level="note", text=f"{text}; the native kernels do without")
            return Finding(level="bad", text=text, advice=f"pip install {' '.join(missing)}")
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")]
        return Finding(level="good", text=", ".join(versions))


class MemoryCheck(Check):
    """Memory, against what the full-size model takes."""

    title = "memory"

    def run(self) -> Finding:
        """Free and all."""
        free, total = available_bytes(), total_bytes()
        text = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
        if self.settings.demo or free >= _COMFORTABLE:
            return Finding(level="good", text=text)
        level: Level = "bad" if total < _FULL_SIZE else "note"
        advice = f"Maple-Preview takes {_COMFORTABLE / 1e9:.1f} GB; --demo serves a small model"
        return Finding(level=level, text=text, advice=advice)


class CacheCheck(Check):
    """The folder where packs are kept."""

    title = "cache folder"

    def run(self) -> Finding:
        """Whether it can be written, and whether a pack fits."""
        folder = self.settings.cache_dir or platformdirs.user_cache_path("maple")
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if not existing.is_dir():
            return Finding(
                level="note", text=f"{existing} is a file", advice="set MAPLE_CACHE_DIR to a folder"
            )
        free = shutil.disk_usage(existing).free
        text = f"{folder}, {free / 1e9:.1f} GB free"
        if not _writable(existing):
            advice = "set MAPLE_CACHE_DIR to a folder that can be written; without one every start packs anew"
            return Finding(level="note", text=f"{text}, not writable", advice=advice)
        if free < _FULL_SIZE:
            return Finding(level="note", text=text, advice=f"a pack takes {_FULL_SIZE / 1e9:.1f} GB")
        return Finding(level="good", text=text)


def _writable(folder: pathlib.Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


CHECKS: tuple[type[Check], ...] = (
    PythonCheck,
    ProcessorCheck,
    KernelCheck,
    EngineCheck,
    CompilerCheck,
    TorchCheck,
    MemoryCheck,
    CacheCheck,
)
