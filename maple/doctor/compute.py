"""What computes: the native kernels, or torch."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pathlib

from maple.choose_engine import Choice, choose
from maple.doctor.check import Check, Finding
from maple.doctor.model import unfit
from maple.native.library import KernelInfo, available
from maple.settings import Settings

_NVIDIA = pathlib.Path("/dev/nvidiactl")
_BUILD = "install g++ or clang, then run python -m maple.native.build"


def _choice(settings: Settings) -> Choice:
    """As the server chooses; a model that the kernels do not compute goes to torch there, too."""
    choice = choose(settings, available())
    if choice.path == "native" and (reason := unfit(settings)):
        advice = "tokens come many times slower on torch; a checkpoint stored in bfloat16 or in two bits is computed"
        return Choice(path="torch", reason=reason, advice=advice)
    return choice


class KernelCheck(Check):
    """The native kernels."""

    title = "kernels"

    def run(self) -> Finding:
        """Which path runs and why, or why none does."""
        kernels = available()
        if not isinstance(kernels, KernelInfo):
            text = f"{kernels.reason}; torch computes instead, many times slower"
            return Finding(level="note", text=text, advice=_BUILD)
        if kernels.path == "scalar":
            return Finding(
                level="note",
                text="scalar: this processor offers none of the vector instructions that the kernels use, "
                "so tokens come many times slower",
                advice="in a virtual machine, let it see the host's processor (-cpu host, host-passthrough)",
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
        settings, choice = self.settings, _choice(self.settings)
        if settings.scripted is not None:
            return Finding(level="good", text="recordings are played, nothing is computed")
        if settings.device.startswith("cuda") and not _NVIDIA.exists():
            text = f"device is {settings.device}, and there is no NVIDIA driver here"
            return Finding(level="bad", text=text, advice="install the driver, or unset MAPLE_DEVICE")
        if choice.path == "native":
            return Finding(level="good", text=f"native kernels, {settings.activations} activations")
        if choice.reason:
            missing = not isinstance(available(), KernelInfo)
            why = "the kernels are missing" if missing else f"the kernels do not compute it: {choice.reason}"
            return Finding(level="note", text=f"torch, since {why}", advice=choice.advice)
        return Finding(level="good", text="torch, as device, dtype or pack_experts ask for, or a GPU is here")


class TorchCheck(Check):
    """Torch and Transformers. They are imported only where they will serve, since that takes seconds."""

    title = "torch"

    def run(self) -> Finding:
        """Their versions, and whether they load."""
        serves = _choice(self.settings).path == "torch" and self.settings.scripted is None
        missing = [name for name in ("torch", "transformers") if _missing(name)]
        text = f"{' and '.join(missing)} not installed"
        if missing and not serves:
            return Finding(level="note", text=f"{text}; the native kernels do without")
        if missing:
            return Finding(level="bad", text=text, advice=f"pip install {' '.join(missing)}")
        return _tried() if serves else Finding(level="good", text=_versions())


def _missing(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except ImportError:
        return True


def _versions() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers"))


def _tried() -> Finding:
    for name in ("torch", "transformers"):
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken installation raises whatever it likes
            text = f"{name} is installed and does not load: {type(error).__name__}: {_line(error)}"
            return Finding(level="bad", text=text, advice=f"pip install --force-reinstall {name}")
    return Finding(level="good", text=_versions())


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
