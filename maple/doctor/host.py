"""The machine and what is installed on it."""

from __future__ import annotations

import pathlib
import platform
import sys

from maple.doctor.check import Check, Finding
from maple.engine.cores import physical_cores
from maple.native.build import CompilerMissing, compiler

_FEATURES = (
    "avx2",
    "fma",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_vbmi",
    "asimddp",
    "i8mm",
)


class PythonCheck(Check):
    """The interpreter. One that is too old does not get this far: the package is not installed on it."""

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


class CompilerCheck(Check):
    """A C++ compiler, which only building the kernels needs."""

    title = "compiler"

    def run(self) -> Finding:
        """The one that a build would take."""
        try:
            return Finding(level="good", text=compiler())
        except CompilerMissing as error:
            return Finding(level="note", text="none, so kernels cannot be built here", advice=str(error))
