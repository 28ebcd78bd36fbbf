"""Compile the kernels: one shared library with a C interface, loaded through ctypes by every Python alike.

Each instruction set is a translation unit with flags of its own; which one runs is decided by the processor
at run time. ``python -m maple.native.build`` builds in place; setup.py loads this file alone and calls
``build``, so it imports the standard library only. By hand: setuptools' extensions are for one Python and have one
set of flags.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

LIBRARY_NAME = "libmaple_kernels.so"
SOURCES = pathlib.Path(__file__).parent / "src"

# -ffp-contract=off: where two copies of a loop are inlined, both must round alike.
_COMMON = (
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-pthread",
    "-Wall",
    "-Wextra",
)
# GCC's own AVX-512 headers trip its uninitialised-variable warnings.
_VECTOR = ("-O3", "-Wno-uninitialized", "-Wno-maybe-uninitialized")
# GCC's early scheduling, which it does on arm64, moves so many loads up that the sums no longer fit the registers.
_ARM = ("-fno-schedule-insns",)
_COMMON_UNITS = (
    "bandwidth",
    "c_api",
    "chunks",
    "dispatch",
    "layout",
    "model",
    "model_create",
    "pack",
    "pool",
    "sampling",
)
_ISA_FLAGS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "isa/avx2": ("-mavx2", "-mfma", "-mf16c"),
        "isa/avxvnni": ("-mavx2", "-mfma", "-mf16c", "-mavxvnni"),
        "isa/avx512": (
            "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mfma", "-mf16c",
        ),
        "isa/avx512vbmi": (
            "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx512vbmi", "-mfma", "-mf16c",
        ),
    },
    "aarch64": {"isa/neon": _ARM, "isa/neondot": (*_ARM, "-march=armv8.2-a+dotprod")},
}  # fmt: skip


class CompilerMissing(RuntimeError):
    """No C++ compiler was found; the message says what to install."""


class Unit(NamedTuple):
    """One translation unit and its flags."""

    source: pathlib.Path
    flags: tuple[str, ...]


def _machine() -> str:
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())


def units(machine: str) -> list[Unit]:
    """The translation units for a processor family: x86_64, aarch64, or any other (portable code only)."""
    isa = _ISA_FLAGS.get(machine, {})
    common = [Unit(source=SOURCES / f"{name}.cpp", flags=("-O3",)) for name in _COMMON_UNITS]
    vector = [Unit(source=SOURCES / f"{name}.cpp", flags=(*_VECTOR, *flags)) for name, flags in isa.items()]
    return [*vector, Unit(source=SOURCES / "isa" / "scalar.cpp", flags=_VECTOR), *common]


def sources() -> list[pathlib.Path]:
    """Every file the library depends on."""
    return sorted(path for path in SOURCES.rglob("*") if path.suffix in {".cpp", ".h", ".inc"})


def compiler() -> str:
    """The C++ compiler: ``CXX``, else c++, g++ or clang++ on the path."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        if found := shutil.which(name):
            return found
    raise CompilerMissing("no C++ compiler found: install g++ or clang, or set CXX")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def build(
    output: pathlib.Path,
    *,
    cxx: str | None = None,
    machine: str | None = None,
    extra: Sequence[str] = (),
    jobs: int | None = None,
) -> pathlib.Path:
    """Compile and link the library to ``output``, replacing it in one step.

    ``extra`` flags go to every compile and to the link (sanitizers). Raises ``CompilerMissing``, or RuntimeError
    with the compiler's last words.
    """
    cxx = cxx or compiler()
    with tempfile.TemporaryDirectory(prefix="maple-kernels-") as scratch:
        folder = pathlib.Path(scratch)

        def compile_unit(unit: Unit) -> str:
            target = str(folder / f"{unit.source.parent.name}-{unit.source.stem}.o")
            _run([cxx, *_COMMON, *unit.flags, *extra, "-c", str(unit.source), "-o", target])
            return target

        with concurrent.futures.ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            objects = list(pool.map(compile_unit, units(machine or _machine())))
        # Sanitizers bring a runtime of their own, and Apple's compilers refuse to link theirs statically.
        shared = sys.platform == "darwin" or any("sanitize" in flag for flag in extra)
        static = () if shared else ("-static-libstdc++", "-static-libgcc")
        linked = folder / LIBRARY_NAME
        _run([cxx, "-shared", "-pthread", *static, *extra, *objects, "-o", str(linked)])
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.with_name(f".{output.name}.{os.getpid()}")
        shutil.copy(linked, partial)
        partial.replace(output)
    return output


def main(arguments: Sequence[str] | None = None) -> int:
    """Build from the command line; prints the library's path."""
    parser = argparse.ArgumentParser(
        prog="python -m maple.native.build", description="Compile Maple's CPU kernels."
    )
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parent / LIBRARY_NAME)
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args(arguments)
    sys.stdout.write(f"{build(options.output, jobs=options.jobs)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
