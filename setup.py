"""Build the native kernels where a C++ compiler is at hand; without one the package installs all the same."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = pathlib.Path(__file__).parent
NATIVE = ROOT / "maple" / "native"


def kernel_builder() -> ModuleType:
    """maple/native/build.py by its file: importing the package would need its dependencies."""
    spec = importlib.util.spec_from_file_location("maple_kernels_build", NATIVE / "build.py")
    if spec is None or spec.loader is None:
        raise RuntimeError("maple/native/build.py is missing")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BUILDER = kernel_builder()


class BuildKernels(build_ext):
    """One shared library with a C interface instead of a Python extension: it serves every Python alike."""

    def get_ext_filename(self, fullname: str) -> str:
        """Name the library as the loader looks for it, without Python's suffix."""
        return str(pathlib.Path(*fullname.split(".")[:-1], BUILDER.LIBRARY_NAME))

    def build_extension(self, ext: Extension) -> None:
        """Compile, or fail in the way that an optional extension may."""
        try:
            BUILDER.build(pathlib.Path(self.get_ext_fullpath(ext.name)))
        except (RuntimeError, OSError) as error:
            raise CompileError(
                f"the native kernels were not built (the torch path works): {error}"
            ) from error


class Wheel(bdist_wheel):
    """The library does not depend on Python's version; a wheel without it depends on no platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-platform with the kernels, py3-none-any without."""
        _, _, platform = super().get_tag()
        built = any(pathlib.Path(self.bdist_dir or ".").rglob(BUILDER.LIBRARY_NAME))
        return "py3", "none", platform if built else "any"


setup(
    ext_modules=[
        Extension(
            "maple.native.maple_kernels",
            sources=[str(path.relative_to(ROOT)) for path in BUILDER.sources() if path.suffix == ".cpp"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
)
