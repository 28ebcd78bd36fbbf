"""Loading for the native kernels, in the engine's thread. Neither torch nor Transformers is imported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import attrs
import structlog

from maple.engine.api import ModelFailed, Served
from maple.engine.detokenize import TokenBytes
from maple.engine.memory import available_bytes
from maple.engine.native_runner import BlockBudget, NativeRunner
from maple.engine.runner import LoadedEngine, Loader, PrefillLimits, physical_cores, read_tokenizer
from maple.kernels import KernelError, NativeModel
from maple.kernels.native import ActivationMode, KvDtype
from maple.model.describe import eos_token_ids, generation_defaults
from maple.model.errors import LoadError
from maple.model.progress import progress_reporter
from maple.native.load import NativeSource, NativeWeights, NotForKernels, load_weights

__all__ = ["KernelOptions", "kv_dtype", "native_loader"]

PREFILL = PrefillLimits(chunk=512, budget=512)
"""Each expert's rows are read once a chunk: a short one wastes them, a long one lets running streams wait."""

_KV_SHARE = 0.8
"""Of the memory that is free once the weights are there."""

log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class KernelOptions:
    """How the kernels run; the words are those of the settings of the same names.

    ``threads`` 0 takes the physical cores, ``kv_cache_mb`` None what is free. ``slots``: sequences that run
    together. ``path`` None takes the processor's best.
    """

    activations: ActivationMode = "int8x2"
    kv_dtype: KvDtype | None = None
    threads: int = 0
    kv_cache_mb: int | None = None
    slots: int = 1
    path: str | None = None


_KV_DTYPES: Mapping[str, KvDtype] = {"bfloat16": "bf16", "float32": "f32", "int8": "int8"}


def kv_dtype(setting: str) -> KvDtype | None:
    """The kernels' word for a value of the setting; None, for auto, is what suits the activations."""
    return _KV_DTYPES.get(setting)


def native_loader(
    source: NativeSource, kernels: KernelOptions, *, otherwise: Callable[[], Loader] | None = None
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
                attrs.evolve(source, threads=threads), progress=progress_reporter(), cancelled=cancelled
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
    token_bytes = TokenBytes(read_tokenizer(loaded.folder))
    ids = token_bytes.ids()
    ids = ids[ids < loaded.config.vocab_size]
    model, longest = _model(loaded, kernels)
    served = Served(
        folder=loaded.folder,
        vocabulary=len(ids),
        max_model_len=longest,
        eos_token_ids=eos_token_ids(loaded.folder, loaded.config),
        generation_defaults=generation_defaults(loaded.folder),
        device="cpu",
        dtype=f"native {model.path}, {model.activations} activations, 2-bit ternary",
        attention=f"native, {model.kv_dtype} KV cache",
        load_seconds=time.monotonic() - started,
    )
    log.info(
        "model.loaded",
        model=loaded.folder.name,
        dtype=served.dtype,
        bytes=loaded.layout.nbytes,
        packed=loaded.packed,
        context=longest,
    )
    return LoadedEngine(
        runner=NativeRunner(model), served=served, token_bytes=token_bytes, token_ids=ids, prefill=PREFILL
    )


def _model(loaded: NativeWeights, kernels: KernelOptions) -> tuple[NativeModel, int]:
    """The model with its KV blocks, and the longest sequence that fits; ModelFailed where none does."""
    config = loaded.config

    def make(budget: BlockBudget) -> NativeModel:
        return NativeModel(
            loaded.shape,
            loaded.weights,
            threads=kernels.threads,
            activations=kernels.activations,
            kv_dtype=kernels.kv_dtype,
            kv_blocks=budget.blocks,
            sliding_kv_blocks=budget.sliding_blocks,
            max_tokens=PREFILL.budget + kernels.slots,
            path=kernels.path,
        )

    with make(BlockBudget(blocks=0, sliding_blocks=0, longest=0)) as probe:
        bytes_each = (probe.kv_block_bytes(sliding=False), probe.kv_block_bytes(sliding=True))
    budget = BlockBudget.of(
        loaded.shape,
        bytes_each=bytes_each,
        budget=_kv_bytes(kernels.kv_cache_mb),
        slots=kernels.slots,
        longest=config.max_position_embeddings,
        chunk=PREFILL.chunk,
    )
    if budget.longest == 0:
        raise ModelFailed("the KV cache has no room for a single sequence: raise MAPLE_KV_CACHE_MB")
    if budget.longest < config.max_position_embeddings:
        log.warning("engine.context_cut", tokens=budget.longest, trained=config.max_position_embeddings)
    return make(budget), budget.longest


def _kv_bytes(kv_cache_mb: int | None) -> int:
    """What KV caches may take; raises ModelFailed where more is asked for than is free."""
    free = available_bytes()
    if kv_cache_mb is None:
        return int(free * _KV_SHARE)
    if kv_cache_mb << 20 > free:
        raise ModelFailed(f"MAPLE_KV_CACHE_MB={kv_cache_mb} is more than the {free >> 20} MiB that are free")
    return kv_cache_mb << 20
