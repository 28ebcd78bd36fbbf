"""The model: its files here or on the hub, and the memory that it takes."""

from __future__ import annotations

import functools
import math
import pathlib
import resource
import shutil

import attrs

from maple.checkpoint.describe import read_config
from maple.checkpoint.disk import existing
from maple.checkpoint.errors import LoadError
from maple.checkpoint.folder import Checkpoint
from maple.checkpoint.locate import locate_here
from maple.choose_engine import model_source
from maple.doctor.check import Check, Finding
from maple.doctor.writable import write_fault
from maple.engine.memory import available_bytes, total_bytes
from maple.errors import MapleError
from maple.native.library import KernelError, Unavailable, available
from maple.native.packfile import Pack, is_pack
from maple.native.parts import NotForKernels
from maple.native.weights import kernel_layout
from maple.prompt.encode import PromptEncoder
from maple.scripted.script import read_script
from maple.settings import Settings

_FULL_SIZE = 5_350_000_000
"""Bytes of Maple-Preview at two bits a weight."""

_PROCESS = 1_000_000_000
"""Bytes of everything but the weights: the process and a KV cache of some use."""

_HUB_SECONDS = 10.0


@attrs.frozen(kw_only=True)
class Weights:
    """What the weights take in memory, and in the cache folder: nothing there, where they are packed already."""

    nbytes: int
    stored: int


def folder_of(settings: Settings) -> pathlib.Path | None:
    """The checkpoint's folder; None for one of the hub that is not, or not wholly, in the hub's cache."""
    return locate_here(str(model_source(settings)), settings.revision)


@functools.lru_cache(maxsize=1)
def opened(folder: pathlib.Path) -> Checkpoint:
    """The checkpoint, opened once for all checks: a doctor looks once, at one model. Raises LoadError."""
    return Checkpoint.open(folder)


def unfit(settings: Settings) -> str:
    """Why the kernels do not compute the model, as the load would say; empty where they do, or nothing shows it."""
    folder = None if settings.scripted is not None else folder_of(settings)
    if folder is None or is_pack(folder):
        return ""
    try:
        kernel_layout(opened(folder), settings.head_dtype)
    except NotForKernels as error:
        return str(error)
    except LoadError:  # ModelCheck says what is wrong
        return ""
    return ""


def weights_of(settings: Settings) -> Weights:
    """As the files say; Maple-Preview's where they are not here or cannot be read."""
    if settings.scripted is not None:
        return Weights(nbytes=0, stored=0)
    folder = folder_of(settings)
    if folder is None:
        return Weights(nbytes=_FULL_SIZE, stored=_FULL_SIZE)
    try:
        return _measure(folder, settings)
    except (LoadError, KernelError, OSError, ValueError):  # ModelCheck says what is wrong
        files = folder.glob("*.safetensors") if folder.is_dir() else ()
        return Weights(nbytes=sum(file.stat().st_size for file in files), stored=0)


def _measure(folder: pathlib.Path, settings: Settings) -> Weights:
    """Read headers, no weights. Raises LoadError, and ValueError for fields that are no Maple's."""
    if is_pack(folder):
        if isinstance(available(), Unavailable):
            raise LoadError(f"{folder.name} is packed for the native kernels, which do not run here")
        pack = Pack.open(folder, read_config(folder))
        return Weights(nbytes=pack.layout.nbytes, stored=0)
    plan = opened(folder).plan
    ternary = sum(math.prod(slot.shape) for slot in plan.sources if slot.kind == "ternary")
    rest = sum(part.nbytes for slot in plan.sources if slot.kind != "ternary" for part in plan.parts(slot))
    unpacked = settings.pack_experts == "false"
    return Weights(nbytes=rest + (ternary * 2 if unpacked else ternary // 4), stored=rest + ternary // 4)


class ModelCheck(Check):
    """The files of the model: config, weights, tokenizer and chat template."""

    title = "model"

    def run(self) -> Finding:
        """Whether they are whole, as far as that shows without reading the weights."""
        settings = self.settings
        try:
            if settings.scripted is not None:
                recordings = len(read_script(settings.scripted))
                return Finding(level="good", text=f"{recordings} recordings in {settings.scripted.name}")
            return self._folder(folder_of(settings))
        except (LoadError, KernelError, MapleError, OSError, ValueError) as error:
            advice = "copy or fetch its files again; --demo serves a small model meanwhile"
            return Finding(level="bad", text=f"{model_source(settings)}: {error}", advice=advice)

    def _folder(self, folder: pathlib.Path | None) -> Finding:
        source = model_source(self.settings)
        if folder is None:
            text = f"{source} is not on this machine yet"
            return Finding(level="good", text=f"{text}: the first start fetches it")
        if not folder.is_dir():
            text = f"there is no folder {folder}" if not folder.exists() else f"{folder} is a file"
            advice = "set MAPLE_MODEL_PATH to the checkpoint's folder or hub id; --demo needs neither"
            return Finding(level="bad", text=text, advice=advice)
        weights = _measure(folder, self.settings)
        PromptEncoder(folder)
        return Finding(level="good", text=f"{folder}, {_size(weights.nbytes)} of weights in memory")


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.1f} MB"


class HubCheck(Check):
    """The hub, where the model still has to be fetched from it."""

    title = "hub"

    def run(self) -> Finding:
        """Whether it answers, has the model, and whether that can be written here and fits on the disk."""
        if self.settings.scripted is not None or folder_of(self.settings) is not None:
            return Finding(level="good", text="not needed")
        from huggingface_hub import constants  # noqa: PLC0415 -- a folder need not wait for it

        if fault := write_fault(pathlib.Path(constants.HF_HUB_CACHE)):
            advice = "set HF_HOME to a folder that can be written: the model is fetched into it"
            return Finding(level="bad", text=fault, advice=advice)
        try:
            return self._room(self._size())
        except Exception as error:  # the client's HTTP and storage errors share no base class
            return self._failed(error)

    def _size(self) -> int:
        """Bytes of the files that the server would fetch."""
        from huggingface_hub import HfApi  # noqa: PLC0415

        from maple.checkpoint.hub import is_wanted  # noqa: PLC0415

        info = HfApi().model_info(
            str(model_source(self.settings)),
            revision=self.settings.revision,
            timeout=_HUB_SECONDS,
            files_metadata=True,
        )
        return sum(file.size or 0 for file in info.siblings or () if is_wanted(file.rfilename))

    def _room(self, size: int) -> Finding:
        from huggingface_hub import constants  # noqa: PLC0415

        cache = pathlib.Path(constants.HF_HUB_CACHE)
        free = shutil.disk_usage(existing(cache)).free
        text = (
            f"{constants.ENDPOINT} answers; {size / 1e9:.1f} GB to fetch, {free / 1e9:.1f} GB free in {cache}"
        )
        if size > free:
            advice = "make room, or set HF_HOME to a folder on a larger disk"
            return Finding(level="bad", text=text, advice=advice)
        return Finding(level="good", text=text)

    def _failed(self, error: Exception) -> Finding:
        from huggingface_hub import constants, errors  # noqa: PLC0415

        source = model_source(self.settings)
        elsewhere = f"or fetch {source} on another machine and set MAPLE_MODEL_PATH to its folder"
        known: tuple[tuple[type[Exception], str, str], ...] = (
            (errors.GatedRepoError, f"{source} is gated", "accept its terms on the hub and set HF_TOKEN"),
            (
                errors.RepositoryNotFoundError,
                f"the hub has no {source}",
                "correct MAPLE_MODEL_PATH, or set HF_TOKEN",
            ),
            (errors.RevisionNotFoundError, f"no revision {self.settings.revision}", "correct MAPLE_REVISION"),
            (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE forbids to ask it", f"unset it, {elsewhere}"),
        )
        for kind, text, advice in known:
            if isinstance(error, kind):
                return Finding(level="bad", text=text, advice=advice)
        text = f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"
        return Finding(level="bad", text=text, advice=f"check HTTPS_PROXY and HF_ENDPOINT, {elsewhere}")


class MemoryCheck(Check):
    """Memory, against what the model takes."""

    title = "memory"

    def run(self) -> Finding:
        """Free, all, and what the process may have."""
        weights = weights_of(self.settings).nbytes
        need, free, total = weights + _PROCESS, available_bytes(), total_bytes()
        text = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free, {need / 1e9:.1f} GB needed"
        advice = "take a machine or a container with more memory; --demo serves a small model"
        if (limit := _limit()) is not None and limit < need:
            text = f"the process may have {limit / 1e9:.1f} GB, {need / 1e9:.1f} GB needed"
            return Finding(level="bad", text=text, advice="raise the limit (ulimit -v), or --demo")
        if total < need:
            return Finding(level="bad", text=text, advice=advice)
        if (cache := (self.settings.kv_cache_mb or 0) << 20) > max(0, free - weights):
            text = f"MAPLE_KV_CACHE_MB asks for {cache / 1e9:.1f} GB, beside the weights "
            text += f"{max(0, free - weights) / 1e9:.1f} GB are free"
            return Finding(level="bad", text=text, advice="lower it, or unset it to take what is free")
        if free < need:
            return Finding(level="note", text=text, advice=f"end other programs, or {advice}")
        return Finding(level="good", text=text)


def _limit() -> int | None:
    """Bytes that the process may have by its own limits, None without any."""
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)
