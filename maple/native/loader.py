"""Loading for the native kernels, in the engine's thread. Neither torch nor Transformers is imported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import attrs
import structlog

from maple.checkpoint.errors import LoadError
from maple.checkpoint.progress import LoadReport, progress_reporter, unheard
from maple.checkpoint.served import loaded_engine
from maple.engine.cores import USEFUL_CONTEXT, most_slots, physical_cores
from maple.engine.errors import ModelFailed
from maple.engine.kv.block_table import SequenceBound
from maple.engine.kv.cache import CacheLimits
from maple.engine.memory import available_bytes, kv_budget
from maple.engine.runner import LoadedEngine, Loader, PrefillLimits
from maple.native.library import KernelError
from maple.native.model import ActivationMode, KvDtype, NativeModel
from maple.native.parts import NotForKernels
from maple.native.runner import NativeRunner
from maple.native.sampling import NativeSampling
from maple.native.weights import NativeSource, NativeWeights, load_weights

PREFILL = PrefillLimits(chunk=64, budget=512)
"""Each expert's rows are read once a chunk: a short one wastes them, a long one lets running streams wait."""

_MOST_BLOCKS = 1 << 24
"""More than any context needs: blocks of layers that there are none of are free."""

_POOLS = 2
"""Of full and of sliding blocks: each has addresses for the whole budget, since memory moves between them."""

log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class KernelOptions:
    """How the kernels run; the words are those of the settings of the same names.

    ``threads`` 0 takes the physical cores, ``kv_cache_mb`` None what is free. ``slots``: sequences that run
    together, None as many as the memory holds at a useful context. ``path`` None takes the processor's best.
    """

    activations: ActivationMode = "int8x2"
    kv_dtype: KvDtype | None = None
    threads: int = 0
    kv_cache_mb: int | None = None
    slots: int | None = 1
    path: str | None = None
    prefix_cache_mb: int = 0
    shared_prefix_cache: bool = False


_KV_DTYPES: Mapping[str, KvDtype] = {"bfloat16": "bf16", "float32": "f32", "int8": "int8"}


def kv_dtype(setting: str) -> KvDtype | None:
    """The kernels' word for a value of the setting; None, for auto, is what suits the activations."""
    return _KV_DTYPES.get(setting)


def native_loader(
    source: NativeSource,
    kernels: KernelOptions,
    *,
    otherwise: Callable[[], Loader] | None = None,
    report: LoadReport = unheard,
) -> Loader:
    """A loader for the native kernels.

    ``otherwise`` makes the loader for checkpoints that the kernels do not compute, such as one whose rows are
    not ternary; without it they fail.
    """

    def load_natively(cancelled: Callable[[], bool]) -> LoadedEngine:
        started = time.monotonic()
        threads = kernels.threads or physical_cores()
        try:
            loaded = load_weights(
                attrs.evolve(source, threads=threads),
                progress=progress_reporter(),
                cancelled=cancelled,
                report=report,
            )
            return _bind(loaded, attrs.evolve(kernels, threads=threads), started)
        except NotForKernels as error:
            if otherwise is None:
                raise ModelFailed(str(error)) from error
            log.warning("engine.kernels_unfit", reason=str(error), advice="the slower torch path takes over")
            return otherwise()(cancelled)
        except (LoadError, KernelError) as error:
            raise ModelFailed(str(error)) from error

    return load_natively


def _bind(loaded: NativeWeights, kernels: KernelOptions, started: float) -> LoadedEngine:
    runner, longest = _runner(loaded, kernels)
    model = runner.model
    engine = loaded_engine(
        loaded.folder,
        loaded.config,
        runner,
        max_model_len=longest,
        prefill=PREFILL,
        device="cpu",
        dtype=f"native {model.path}, {model.activations} activations, 2-bit ternary",
        attention=f"native, {model.kv_dtype} KV cache",
        seconds=time.monotonic() - started,
    )
    log.info(
        "model.loaded",
        model=loaded.folder.name,
        dtype=engine.served.dtype,
        bytes=loaded.layout.nbytes,
        packed=loaded.packed,
        context=longest,
    )
    slots = kernels.slots or _fitting(runner, min(longest, USEFUL_CONTEXT), most_slots(kernels.threads))
    return attrs.evolve(
        engine, choose=NativeSampling(model), slots=slots, rotted=loaded.rotted, blocks=runner.blocks
    )


def _fitting(runner: NativeRunner, context: int, most: int) -> int:
    """How many sequences of ``context`` tokens the KV memory holds, from 1 to ``most``."""
    return max(1, min(most, runner.budget // runner.bytes_for(context)))


def _runner(loaded: NativeWeights, kernels: KernelOptions) -> tuple[NativeRunner, int]:
    """The runner with its KV blocks, and the longest sequence that fits; ModelFailed where no window does."""
    trained = loaded.config.max_position_embeddings
    budget = kv_budget(
        kernels.kv_cache_mb,
        available_bytes(addresses=_POOLS),
        mapped=loaded.layout.nbytes if loaded.packed else 0,
    )
    with _model(loaded, kernels, (0, 0)) as probe:
        bytes_each = (probe.kv_block_bytes(sliding=False), probe.kv_block_bytes(sliding=True))
    model = _model(loaded, kernels, [min(budget // max(1, size), _MOST_BLOCKS) for size in bytes_each])
    runner = NativeRunner(
        model,
        SequenceBound(window=loaded.shape.window, step=PREFILL.budget),
        budget=budget,
        limits=CacheLimits(prefix_bytes=kernels.prefix_cache_mb << 20, shared=kernels.shared_prefix_cache),
    )
    longest, window = min(runner.longest, trained), min(loaded.shape.window, trained)
    if longest < window:
        least = (runner.bytes_for(window) >> 20) + 1
        raise ModelFailed(
            f"MAPLE_KV_CACHE_MB: {budget >> 20} MiB hold {longest} tokens, one window has {window}: {least} at least"
        )
    if longest < trained:
        log.warning("engine.context_cut", tokens=longest, trained=trained)
    return runner, longest


def _model(loaded: NativeWeights, kernels: KernelOptions, blocks: Sequence[int]) -> NativeModel:
    """The model with room for so many blocks of full and of sliding layers; unused ones cost no memory."""
    return NativeModel(
        loaded.shape,
        loaded.weights,
        threads=kernels.threads,
        activations=kernels.activations,
        kv_dtype=kernels.kv_dtype,
        kv_blocks=blocks[0],
        sliding_kv_blocks=blocks[1],
        max_tokens=PREFILL.budget + (kernels.slots or most_slots(kernels.threads)),
        path=kernels.path,
    )
