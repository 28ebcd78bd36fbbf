"""From settings to an engine: which one, and what it is told to load. Nothing is started or loaded here.

The heavy layers are imported inside functions, only where a model is wanted.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

import attrs
import structlog

from maple.configure import cache_folder, prefix_folder
from maple.engine.admission import QueueLimits
from maple.engine.api import Engine
from maple.engine.cores import physical_cores
from maple.engine.loading import LoadingGauge
from maple.scripted.engine import ScriptedEngine, scripted_served
from maple.scripted.script import read_script
from maple.settings import Settings

if TYPE_CHECKING:
    from maple.engine.prefix_disk.disk import PrefixDisk
    from maple.engine.prefix_disk.names import Owners
    from maple.engine.runner import Loader
    from maple.engine.session_files import SessionFiles
    from maple.native.library import KernelInfo, Unavailable
    from maple.native.loader import KernelOptions
    from maple.native.model import ActivationMode
    from maple.native.weights import NativeSource
    from maple.torch_model.load import LoadOptions

DEMO_FOLDER = pathlib.Path(__file__).parent / "demo"

_ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files of NVIDIA's and AMD's drivers: asking torch would take seconds."""

log = structlog.get_logger(__name__)


def build_engine(settings: Settings, owners: Owners | None = None) -> Engine:
    """A front where a cluster is asked for, else the scripted engine or a model behind its thread.

    ``owners`` may own prefixes on disk; without them any name may.
    """
    limits = QueueLimits(slots=settings.slots, depth=settings.max_queue_depth, timeout=settings.queue_timeout)
    if settings.engine == "ray":
        return _ray_engine(settings, limits)
    if settings.scripted is not None:
        return ScriptedEngine(
            read_script(settings.scripted), served=scripted_served(DEMO_FOLDER), limits=limits
        )
    from maple.engine.worker import ThreadedEngine  # noqa: PLC0415 -- only where a model is wanted

    gauge = LoadingGauge()
    loader = model_loader(settings, gauge)
    return ThreadedEngine(
        loader,
        limits=limits,
        session_files=session_files(settings),
        prefix_disk=prefix_disk(settings, owners),
        gauge=gauge,
    )


def _ray_engine(settings: Settings, limits: QueueLimits) -> Engine:
    """A front over replicas that run what these settings run without a cluster."""
    from maple.cluster.engine import RayEngine  # noqa: PLC0415 -- only where a cluster is asked for
    from maple.cluster.ray_fleet import RayFleet, Replicas  # noqa: PLC0415

    least, most = settings.replicas
    cores = settings.replica_cores or physical_cores()
    local = attrs.evolve(
        settings,
        engine="local",
        max_queue_depth=1 << 20,  # a front's routing bounds what waits there
        torch_threads=settings.torch_threads or max(1, round(cores)),
    )
    replicas = Replicas(least=least, most=most, cores=cores, memory=settings.replica_memory_mb << 20)
    fleet = RayFleet(
        functools.partial(build_engine, local),
        replicas,
        address=settings.ray_address,
        application=settings.deployment,
    )
    return RayEngine(fleet, limits=limits)


def session_files(settings: Settings) -> SessionFiles | None:
    """Where sessions are saved, if they are. Raises SessionsUnusable."""
    if settings.session_dir is None:
        return None
    from maple.engine.session_files import SessionFiles  # noqa: PLC0415 -- only where a model is wanted

    files = SessionFiles(settings.session_dir, max_bytes=settings.session_max_mb << 20)
    files.check()
    return files


def prefix_disk(settings: Settings, owners: Owners | None) -> PrefixDisk | None:
    """Where prefixes outlive the process, if they do: no disk is touched before a model is loaded."""
    folder = prefix_folder(settings)
    if folder is None or not settings.prefix_cache_mb:
        return None
    from maple.engine.prefix_disk.disk import PrefixDisk  # noqa: PLC0415 -- only where a model is wanted
    from maple.engine.prefix_disk.store import PrefixStore  # noqa: PLC0415

    most = settings.prefix_disk_mb
    store = PrefixStore(
        folder,
        max_bytes=None if most is None else most << 20,
        owners=owners,
        shared=settings.shared_prefix_cache,
    )
    return PrefixDisk(store, owners)


def model_loader(settings: Settings, gauge: LoadingGauge | None = None) -> Loader:
    """The native kernels' loader, or torch's where they are missing or another device or type is wanted.

    ``gauge`` hears how far it is.
    """
    from maple.engine.kv.cache import CacheLimits  # noqa: PLC0415 -- only where a model is wanted
    from maple.native.loader import native_loader  # noqa: PLC0415
    from maple.torch_model.loader import torch_loader  # noqa: PLC0415

    report = (gauge or LoadingGauge()).report

    def torch() -> Loader:
        _tell_what_torch_ignores(settings)
        return torch_loader(
            lambda: load_options(settings),
            threads=settings.torch_threads,
            kv_cache_mb=settings.kv_cache_mb,
            limits=CacheLimits(
                prefix_bytes=settings.prefix_cache_mb << 20, shared=settings.shared_prefix_cache
            ),
            report=report,
        )

    def native() -> Loader:
        return native_loader(
            native_source(settings), kernel_options(settings), otherwise=torch, report=report
        )

    return choose_loader(settings, native=native, torch=torch)


def _tell_what_torch_ignores(settings: Settings) -> None:
    """Keys and values there have the model's type, activations are fp32: whoever asked for others is told."""
    ignored = [
        f"MAPLE_{name.upper()}"
        for name in ("kv_dtype", "activations")
        if getattr(settings, name) != getattr(Settings(), name)
    ]
    if ignored:
        log.warning("settings.only_for_the_kernels", variables=ignored)


@attrs.frozen(kw_only=True)
class Choice:
    """``path``, and why not the native one: ``reason`` and ``advice`` are empty where torch was asked for."""

    path: Literal["native", "torch"]
    reason: str = ""
    advice: str = ""


def choose(settings: Settings, kernels: KernelInfo | Unavailable) -> Choice:
    """Native on the CPU, unless the kernels are missing or the settings ask for what only torch does."""
    from maple.native.library import Unavailable  # noqa: PLC0415 -- only where a model is wanted

    if settings.device not in ("auto", "cpu") or settings.dtype != "auto" or settings.pack_experts == "false":
        return Choice(path="torch")
    if settings.device == "auto" and has_accelerator():
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
    settings: Settings,
    *,
    native: Callable[[], Loader],
    torch: Callable[[], Loader],
    kernels: KernelInfo | Unavailable | None = None,
) -> Loader:
    """The loader for these settings; logs one line where the kernels would have served them and are missing.

    ``kernels`` overrides what ``available`` finds.
    """
    from maple.native.library import available  # noqa: PLC0415 -- only where a model is wanted

    choice = choose(settings, available() if kernels is None else kernels)
    if choice.reason:
        log.warning("engine.kernels_missing", reason=choice.reason, advice=choice.advice)
    return native() if choice.path == "native" else torch()


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
        slots=settings.slots,
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
    if settings.demo or settings.scripted:
        return DEMO_FOLDER
    return settings.model_path or _unnamed_model(settings)


def _unnamed_model(settings: Settings) -> str:
    """What is smallest to fetch and to keep: on a CPU two bits a weight, unless the bf16 weights are here alone."""
    from maple.checkpoint.hub import FLOAT_CHECKPOINT, TWO_BIT_CHECKPOINT, cached  # noqa: PLC0415 -- a third of a second

    on_cpu = settings.device == "cpu" or (settings.device == "auto" and not has_accelerator())
    if not on_cpu:
        return FLOAT_CHECKPOINT
    here = [each for each in (TWO_BIT_CHECKPOINT, FLOAT_CHECKPOINT) if cached(each, settings.revision)]
    return here[0] if here else TWO_BIT_CHECKPOINT


def has_accelerator() -> bool:
    """Whether a driver of NVIDIA's or AMD's is there."""
    return any(pathlib.Path(name).exists() for name in _ACCELERATORS)
