"""Loading for torch, in the engine's thread. Importing this module does not import torch; the loader does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from maple.checkpoint.progress import LoadReport, progress_reporter, unheard
from maple.engine.cores import MOST_SLOTS, USEFUL_CONTEXT, physical_cores
from maple.engine.errors import ModelFailed
from maple.engine.kv.cache import CacheLimits
from maple.engine.memory import available_bytes, kv_budget
from maple.engine.runner import LoadedEngine, Loader, PrefillLimits

if TYPE_CHECKING:
    from maple.torch_model.load import LoadOptions

# Unpacking a layer costs 512 tokens no more than 128, and a cancelled pass stops at the next layer anyway.
_TORCH_PREFILL = PrefillLimits(chunk=512, budget=512)


def torch_loader(
    options: Callable[[], LoadOptions],
    *,
    threads: int = 0,
    kv_cache_mb: int | None = None,
    limits: CacheLimits | None = None,
    report: LoadReport = unheard,
) -> Loader:
    """A loader for the Transformers model. ``options`` is called, and torch imported, in the engine's thread.

    ``threads`` is torch's number of threads; 0 takes the physical cores. ``kv_cache_mb`` None takes what is free.
    """

    def load_with_torch(cancelled: Callable[[], bool]) -> LoadedEngine:
        started = time.monotonic()
        # Read by torch's OpenMP when it is loaded: waiting threads that spin collapse as soon as another process
        # wants a core (15 s of processor time a token were seen instead of 0.6).
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        import torch  # noqa: PLC0415 - seconds of import that a server's start must not wait for

        from maple.checkpoint.errors import LoadError  # noqa: PLC0415
        from maple.checkpoint.served import loaded_engine  # noqa: PLC0415
        from maple.torch_model.load import load  # noqa: PLC0415
        from maple.torch_model.runner import TorchRunner  # noqa: PLC0415

        _route_transformers_logs()
        torch.set_num_threads(threads or physical_cores())
        try:
            loaded = load(options(), progress=progress_reporter(), cancelled=cancelled, report=report)
            budget = kv_budget(kv_cache_mb, _free_bytes(torch, loaded.device))
            runner = TorchRunner(loaded, budget=budget, limits=limits)
            on_cpu = loaded.device == "cpu"
            slots = 1 if on_cpu else max(1, min(MOST_SLOTS, runner.longest // USEFUL_CONTEXT))
            engine = loaded_engine(
                loaded.folder,
                loaded.config,
                runner,
                max_model_len=min(loaded.config.max_position_embeddings, runner.longest),
                prefill=_TORCH_PREFILL,
                device=loaded.device,
                dtype=loaded.dtype,
                attention=loaded.attention,
                seconds=time.monotonic() - started,
            )
            return attrs.evolve(engine, slots=slots)
        except LoadError as error:
            raise ModelFailed(str(error)) from error

    return load_with_torch


def _route_transformers_logs() -> None:
    """Send the library's log lines where all others go; by default it writes to stderr in a form of its own."""
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415

    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()


def _free_bytes(torch: Any, device: str) -> int:
    """Memory that is free where the model is."""
    return int(torch.cuda.mem_get_info()[0]) if device.startswith("cuda") else available_bytes()
