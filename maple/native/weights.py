"""From a folder or a hub id to weights that the kernels read."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

import attrs
import structlog

from maple.checkpoint.describe import read_config
from maple.checkpoint.errors import LoadCancelled, LoadError
from maple.checkpoint.fields import PlainConfig
from maple.checkpoint.folder import PACK_MANIFEST, Checkpoint
from maple.checkpoint.locate import locate
from maple.checkpoint.pack_cache import PackCache
from maple.checkpoint.progress import LoadProgress, LoadReport, LoadTracker, told, unheard
from maple.native.fingerprint import FORMAT
from maple.native.forms import Forms
from maple.native.layout import Layout
from maple.native.library import KernelError
from maple.native.model import ModelShape, ModelWeights
from maple.native.packfile import Pack, is_pack, is_rotted, pack_key, put_away, write_pack
from maple.native.pages import touch
from maple.native.parts import NotForKernels, packed_parts, require_narrow_scales

log = structlog.get_logger(__name__)

_WORTH_KEEPING = 64 << 20
"""Bytes from which a pack is stored: smaller models are packed in less time than a file takes."""


@attrs.frozen(kw_only=True)
class NativeSource:
    """What to load; the words are those of the settings of the same names.

    source: a folder of any spelling, a pack, or a hub id with its revision.
    head_dtype: int8 narrows a bf16 head; anything else keeps it as stored.
    threads: that pack.
    cache_dir: where packs of other spellings are kept for the next start; None keeps none, and no pack below
    ``keep_from`` bytes is kept.
    preload: whether a mapped pack's pages are touched before the load ends.
    """

    source: str
    revision: str = "main"
    head_dtype: str = "auto"
    threads: int = 1
    cache_dir: pathlib.Path | None = None
    keep_from: int = _WORTH_KEEPING
    preload: bool = True


@attrs.frozen(kw_only=True, eq=False)
class NativeWeights:
    """Weights in the kernels' layout. ``folder`` holds the tokenizer; ``packed``: they were found packed.

    ``rotted`` reads a mapped pack: whether its bytes have changed, and it was put away since it can be made anew.
    """

    folder: pathlib.Path
    config: PlainConfig
    shape: ModelShape
    weights: ModelWeights
    layout: Layout
    packed: bool
    rotted: Callable[[], bool] = lambda: False


def load_weights(
    options: NativeSource,
    *,
    progress: Callable[[LoadProgress], None],
    cancelled: Callable[[], bool],
    report: LoadReport = unheard,
) -> NativeWeights:
    """Load in the calling thread: map a pack, or pack another spelling and keep the pack.

    Raises ``LoadError`` with one line, ``NotForKernels`` for a checkpoint that only torch computes, and
    ``LoadCancelled``.
    """
    folder = locate(options.source, options.revision, cancelled, report)
    if is_pack(folder):
        config = read_config(folder)
        mapped = _mapped(folder, config, Pack.open(folder, config), options, cancelled, report)
        return attrs.evolve(mapped, rotted=lambda: is_rotted(folder) and _told_of(folder))
    checkpoint = Checkpoint.open(folder)
    layout = kernel_layout(checkpoint, options.head_dtype)
    tracker = LoadTracker(checkpoint.parts(), told(progress, "packing", report), cancelled)
    if options.cache_dir is not None and layout.nbytes >= options.keep_from:
        kept = _kept(checkpoint, layout, tracker, options.cache_dir, options.threads)
        if kept is not None:
            mapped = _mapped(folder, checkpoint.config, kept, options, cancelled, report)
            return attrs.evolve(mapped, rotted=lambda: is_rotted(kept.folder) and put_away(kept.folder))
    arrays = dict(packed_parts(checkpoint, layout, tracker, threads=options.threads))
    weights = layout.bind(arrays)
    return NativeWeights(
        folder=folder,
        config=checkpoint.config,
        shape=layout.shape,
        weights=weights,
        layout=layout,
        packed=False,
    )


def kernel_layout(checkpoint: Checkpoint, head_dtype: str) -> Layout:
    """The layout of its pack, as far as headers and wide scales tell: rows are not read.

    Raises ``NotForKernels`` for a checkpoint that only torch computes, and ``LoadError``.
    """
    try:
        layout = Layout(checkpoint.config, Forms.of(checkpoint.plan, head_dtype))
    except (LoadError, KernelError) as error:
        raise NotForKernels(str(error)) from error
    require_narrow_scales(checkpoint)
    return layout


def _kept(
    checkpoint: Checkpoint, layout: Layout, tracker: LoadTracker, cache_dir: pathlib.Path, threads: int
) -> Pack | None:
    """The checkpoint's pack from the cache, put there first if need be; None where it cannot be kept."""
    cache = PackCache(root=cache_dir / "native", manifest=PACK_MANIFEST, version=FORMAT)
    key, folder = pack_key(checkpoint, layout), checkpoint.folder

    def read(entry: pathlib.Path) -> Pack:
        return Pack.open(entry, checkpoint.config)

    def write(entry: pathlib.Path) -> None:
        parts = packed_parts(checkpoint, layout, tracker, threads=threads)
        write_pack(entry, layout, parts, {"folder": str(folder.resolve())})

    if (found := cache.find(key, read)) is not None:
        return found
    return cache.find(key, read) if cache.store(key, folder, layout.nbytes, write) else None


def _told_of(folder: pathlib.Path) -> bool:
    """A pack that somebody made is not ours to make anew: never."""
    log.error("pack.rotted", pack=folder.name, advice="pack its checkpoint again")
    return False


def _mapped(
    folder: pathlib.Path,
    config: PlainConfig,
    pack: Pack,
    options: NativeSource,
    cancelled: Callable[[], bool],
    report: LoadReport,
) -> NativeWeights:
    if options.preload:
        reading = functools.partial(report, "load")
        touch(pack.arrays.values(), threads=options.threads, cancelled=cancelled, report=reading)
    if cancelled():
        raise LoadCancelled
    return NativeWeights(
        folder=folder,
        config=config,
        shape=pack.layout.shape,
        weights=pack.bind(),
        layout=pack.layout,
        packed=True,
    )
