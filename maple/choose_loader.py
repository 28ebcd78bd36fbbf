"""Which loader serves a checkpoint: the native kernels where they run, torch otherwise."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Literal

import attrs
import structlog

from maple.engine.runner import Loader
from maple.native.library import KernelInfo, Unavailable, available

__all__ = ["Choice", "Wishes", "choose", "choose_loader"]

log = structlog.get_logger(__name__)

_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files of NVIDIA's and AMD's drivers: asking torch would take seconds."""


@attrs.frozen(kw_only=True)
class Wishes:
    """Settings that only the torch path can fulfil unless they are left alone."""

    device: str = "auto"
    dtype: str = "auto"
    pack_experts: str = "auto"


@attrs.frozen(kw_only=True)
class Choice:
    """``path``, and why not the native one: ``reason`` and ``advice`` are empty where torch was asked for."""

    path: Literal["native", "torch"]
    reason: str = ""
    advice: str = ""


def choose(wishes: Wishes, kernels: KernelInfo | Unavailable) -> Choice:
    """Native on the CPU, unless the kernels are missing or the settings ask for what only torch does."""
    if wishes.device not in ("auto", "cpu") or wishes.dtype != "auto" or wishes.pack_experts == "false":
        return Choice(path="torch")
    if wishes.device == "auto" and any(pathlib.Path(name).exists() for name in _ACCELERATORS):
        return Choice(path="torch")
    if isinstance(kernels, Unavailable):
        return Choice(
            path="torch",
            reason=kernels.reason,
            advice="decoding is many times slower on torch; install g++ or clang and run "
            "python -m maple.native.build",
        )
    return Choice(path="native")


def choose_loader(
    wishes: Wishes,
    *,
    native: Callable[[], Loader],
    torch: Callable[[], Loader],
    kernels: KernelInfo | Unavailable | None = None,
) -> Loader:
    """The loader for these wishes; logs one line where the kernels would have served them and are missing.

    ``kernels`` overrides what `available` finds.
    """
    choice = choose(wishes, available() if kernels is None else kernels)
    if choice.reason:
        log.warning("engine.kernels_missing", reason=choice.reason, advice=choice.advice)
    return native() if choice.path == "native" else torch()
