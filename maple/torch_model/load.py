"""From a folder or a hub id to a model that answers."""

from __future__ import annotations

import pathlib
import re
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs
import structlog
import torch
from huggingface_hub.errors import StrictDataclassError

from maple.checkpoint import describe
from maple.checkpoint.errors import LoadError
from maple.checkpoint.folder import Checkpoint
from maple.checkpoint.locate import locate
from maple.checkpoint.progress import LoadProgress, LoadReport, LoadTracker, told, unheard
from maple.checkpoint.shards import MappedShards
from maple.checkpoint.spelling import Dense, PerExpert
from maple.torch_model.assemble import Form, assemble
from maple.torch_model.configuration import MapleConfig
from maple.torch_model.convert import Converter, Weights
from maple.torch_model.kept_rows import KeptRows, rows_key
from maple.torch_model.modeling import MapleForCausalLM
from maple.torch_model.packed import PackedExperts, PackedLinear
from maple.torch_model.register import register
from maple.torch_model.ternary import TernaryTensor

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HEAD_DTYPES = {"auto": None, "bfloat16": torch.bfloat16, "float32": torch.float32}

T = TypeVar("T")

log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class LoadOptions:
    """What to load and in which form; the words are those of the settings of the same names.

    source: a folder, or a hub id with its revision.
    device: auto (an accelerator if there is one), cpu, cuda, cuda:N or mps.
    dtype: of dense weights: auto (float32 on the CPU, bfloat16 on accelerators), float32, bfloat16 or
    float16; with the latter two keys and values are float16. Activations between products are fp32.
    pack_experts: whether ternary weights stay at two bits and tables as stored: auto (on the CPU), true or
    false.
    head_dtype: of the output matrix: auto (as stored), bfloat16 or float32.
    cache_dir: where weights packed from a float checkpoint are kept for the next start; None keeps none.
    """

    source: str
    revision: str = "main"
    device: str = "auto"
    dtype: str = "auto"
    pack_experts: str = "auto"
    head_dtype: str = "auto"
    cache_dir: pathlib.Path | None = None


@attrs.frozen(kw_only=True)
class LoadedModel:
    """A model in eval mode on its device, and what a server wants to say about it.

    folder: holds the tokenizer's files; packed_tensors and bytes count what the model keeps in memory or
    mapped;
    from_cache: the weights were found packed, or already scanned, from an earlier load.
    """

    model: MapleForCausalLM
    config: MapleConfig
    folder: pathlib.Path
    eos_token_ids: tuple[int, ...]
    generation_defaults: Mapping[str, float]
    device: str
    dtype: str
    attention: str
    packed_tensors: int
    bytes: int
    seconds: float
    from_cache: bool


def _never() -> bool:
    return False


def load(
    options: LoadOptions,
    *,
    progress: Callable[[LoadProgress], None],
    cancelled: Callable[[], bool] = _never,
    report: LoadReport = unheard,
) -> LoadedModel:
    """Load ``options.source`` in the calling thread.

    ``progress`` is called after each tensor and ``cancelled`` asked before it, both from this thread. Raises
    ``LoadError`` with one line that names what is wrong, or ``LoadCancelled``.
    """
    started = time.monotonic()
    register()
    form = _form(options)
    folder = locate(options.source, options.revision, cancelled, report)
    checkpoint = Checkpoint.open(folder)
    config = _config(checkpoint)
    tracker = LoadTracker(checkpoint.parts(), told(progress, "load", report), cancelled)
    files = MappedShards(checkpoint.shards, copy_on_write=True)
    with torch.no_grad():
        ready, from_cache = None, False
        if form.packed:
            ready, from_cache = _packed(checkpoint, files, tracker, options.cache_dir)
        converter = Converter(files, tracker, pack=form.packed, ready=ready)
        model = assemble(config, converter.convert(checkpoint.plan), form)
    loaded = _describe(model, checkpoint, form, seconds=time.monotonic() - started, from_cache=from_cache)
    log.info("model.loaded", model=folder.name, dtype=loaded.dtype, bytes=loaded.bytes, from_cache=from_cache)
    return loaded


def _config(checkpoint: Checkpoint) -> MapleConfig:
    try:
        return MapleConfig(**checkpoint.fields)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise LoadError(f"config.json of {checkpoint.folder.name}: {error}") from error


def _form(options: LoadOptions) -> Form:
    device = _device(options.device)
    on_cpu = device.type == "cpu"
    dtypes = {"auto": torch.float32 if on_cpu else torch.bfloat16, **_DTYPES}
    return Form(
        device=device,
        dtype=_choose("dtype", options.dtype, dtypes),
        packed=_choose("pack_experts", options.pack_experts, {"auto": on_cpu, "true": True, "false": False}),
        head_dtype=_choose("head_dtype", options.head_dtype, _HEAD_DTYPES),
    )


def _choose(setting: str, value: str, choices: Mapping[str, T]) -> T:
    if value not in choices:
        raise LoadError(f"{setting} must be one of {', '.join(choices)}, not {value!r}")
    return choices[value]


def _device(name: str) -> torch.device:
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d{1,3})?", name):
        raise LoadError(f"device must be one of auto, cpu, cuda, cuda:N, mps, not {name!r}")
    device = torch.device(name)
    count = {"cpu": 1, "mps": int(mps), "cuda": torch.cuda.device_count()}[device.type]
    if (device.index or 0) >= count:
        raise LoadError(f"device {name} is not available here")
    return device


def _packed(
    checkpoint: Checkpoint, files: MappedShards, tracker: LoadTracker, cache_dir: pathlib.Path | None
) -> tuple[Mapping[str, Weights], bool]:
    """The ternary tensors by slot, from the cache or made and stored there; and whether they were found."""
    sources = checkpoint.plan.sources
    cache = None if cache_dir is None else KeptRows(cache_dir)
    key = rows_key(checkpoint.shards)
    shapes = {slot.name: slot.shape for slot in sources if slot.kind == "ternary"}
    found = None if cache is None else cache.find(key, shapes)
    if found is not None:
        return found, True
    converted = Converter(files, tracker, pack=True).convert(checkpoint.plan)
    made = {slot.name: tensor for slot, tensor in converted if slot.kind == "ternary"}
    if cache is not None:
        worth = {slot.name for slot, source in sources.items() if isinstance(source, Dense | PerExpert)}
        packed = {n: t for n, t in made.items() if n in worth and isinstance(t, TernaryTensor)}
        if cache.store(key, packed, checkpoint.folder):
            # From here on the mapped files stand in for the copies in memory.
            made.update(cache.find(key, shapes) or {})
    return made, False


def _describe(
    model: MapleForCausalLM, checkpoint: Checkpoint, form: Form, *, seconds: float, from_cache: bool
) -> LoadedModel:
    config, folder = model.config, checkpoint.folder
    packed = sum(m.packed_tensors for m in model.modules() if isinstance(m, PackedLinear | PackedExperts))
    dtype = str(form.dtype).removeprefix("torch.")
    held = {t.data_ptr(): t.nbytes for t in (*model.parameters(), *model.buffers())}
    return LoadedModel(
        model=model,
        config=config,
        folder=folder,
        eos_token_ids=describe.eos_token_ids(folder, config),
        generation_defaults=describe.generation_defaults(folder),
        device=str(form.device),
        dtype=f"{dtype} + 2-bit ternary weights ({packed} packed)" if packed else dtype,
        attention=f"torch-{config._attn_implementation}",
        packed_tensors=packed,
        bytes=sum(held.values()),
        seconds=seconds,
        from_cache=from_cache,
    )
