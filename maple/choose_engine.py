"""From settings to an engine: which one, and what it is told to load. Nothing is started or loaded here.

The heavy layers are imported inside functions, only where a model is wanted.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, cast

from maple.configure import cache_folder
from maple.engine.admission import QueueLimits
from maple.engine.api import Engine
from maple.scripted.engine import ScriptedEngine, scripted_served
from maple.scripted.script import read_script
from maple.settings import Settings

if TYPE_CHECKING:
    from maple.choose_loader import Wishes
    from maple.engine.runner import Loader
    from maple.engine.session_files import SessionFiles
    from maple.native.loader import KernelOptions
    from maple.native.model import ActivationMode
    from maple.native.weights import NativeSource
    from maple.torch_model.load import LoadOptions

DEMO_FOLDER = pathlib.Path(__file__).parent / "demo"


def build_engine(settings: Settings) -> Engine:
    """The scripted engine where a script was given, a model behind its thread otherwise."""
    limits = QueueLimits(
        slots=settings.max_batch, depth=settings.max_queue_depth, timeout=settings.queue_timeout
    )
    if settings.scripted is not None:
        return ScriptedEngine(
            read_script(settings.scripted), served=scripted_served(DEMO_FOLDER), limits=limits
        )
    from maple.engine.worker import ThreadedEngine  # noqa: PLC0415 -- only where a model is wanted

    return ThreadedEngine(model_loader(settings), limits=limits, session_files=session_files(settings))


def session_files(settings: Settings) -> SessionFiles | None:
    """Where sessions are saved, if they are. Raises SessionsUnusable."""
    if settings.session_dir is None:
        return None
    from maple.engine.session_files import SessionFiles  # noqa: PLC0415 -- only where a model is wanted

    files = SessionFiles(settings.session_dir, max_bytes=settings.session_max_mb << 20)
    files.check()
    return files


def model_loader(settings: Settings) -> Loader:
    """The native kernels' loader, or torch's where they are missing or another device or type is wanted."""
    from maple.choose_loader import choose_loader  # noqa: PLC0415
    from maple.engine.kv.cache import CacheLimits  # noqa: PLC0415 -- only where a model is wanted
    from maple.native.loader import native_loader  # noqa: PLC0415
    from maple.torch_model.loader import torch_loader  # noqa: PLC0415

    def torch() -> Loader:
        return torch_loader(
            lambda: load_options(settings),
            threads=settings.torch_threads,
            kv_cache_mb=settings.kv_cache_mb,
            limits=CacheLimits(
                prefix_bytes=settings.prefix_cache_mb << 20, shared=settings.shared_prefix_cache
            ),
        )

    def native() -> Loader:
        return native_loader(native_source(settings), kernel_options(settings), otherwise=torch)

    return choose_loader(wishes(settings), native=native, torch=torch)


def wishes(settings: Settings) -> Wishes:
    """What the settings say about who computes."""
    from maple.choose_loader import Wishes  # noqa: PLC0415 -- only where a model is wanted

    return Wishes(device=settings.device, dtype=settings.dtype, pack_experts=settings.pack_experts)


def native_source(settings: Settings) -> NativeSource:
    """What the native loader is told to load."""
    from maple.native.weights import NativeSource  # noqa: PLC0415

    return NativeSource(
        source=str(model_source(settings)),
        revision=settings.revision,
        head_dtype=settings.head_dtype,
        cache_dir=cache_folder(settings),
        preload=settings.preload,
    )


def kernel_options(settings: Settings) -> KernelOptions:
    """How the native kernels are to run."""
    from maple.native.loader import KernelOptions, kv_dtype  # noqa: PLC0415

    return KernelOptions(
        activations=cast("ActivationMode", settings.activations),
        kv_dtype=kv_dtype(settings.kv_dtype),
        threads=settings.torch_threads,
        kv_cache_mb=settings.kv_cache_mb,
        slots=settings.max_batch,
        prefix_cache_mb=settings.prefix_cache_mb,
        shared_prefix_cache=settings.shared_prefix_cache,
    )


def load_options(settings: Settings) -> LoadOptions:
    """What the model layer is told; called on the engine's thread, since it imports torch."""
    from maple.torch_model.load import LoadOptions  # noqa: PLC0415

    return LoadOptions(
        source=str(model_source(settings)),
        revision=settings.revision,
        device=settings.device,
        dtype=settings.dtype,
        pack_experts=settings.pack_experts,
        head_dtype=settings.head_dtype,
        cache_dir=cache_folder(settings),
    )


def model_source(settings: Settings) -> str | pathlib.Path:
    """The embedded model, a folder or a hub id."""
    return DEMO_FOLDER if settings.demo or settings.scripted else settings.model_path
