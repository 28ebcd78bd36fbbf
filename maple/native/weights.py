"""From a folder or a hub id to weights that the kernels read."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable

import attrs
import structlog

from maple.checkpoint.describe import read_fields
from maple.checkpoint.errors import LoadCancelled, LoadError
from maple.checkpoint.fields import PlainConfig
from maple.checkpoint.folder import Checkpoint
from maple.checkpoint.pack_cache import EntryStore, checkpoint_key
from maple.checkpoint.progress import LoadProgress, LoadTracker
from maple.native.fingerprint import FORMAT, fingerprint
from maple.native.forms import Forms
from maple.native.layout import Layout
from maple.native.library import KernelError
from maple.native.model import ModelShape, ModelWeights
from maple.native.packfile import PACK_MANIFEST, Pack, is_pack, write_pack
from maple.native.pages import touch
from maple.native.parts import NotForKernels, packed_parts

__all__ = ["NativeSource", "NativeWeights", "NotForKernels", "load_weights", "locate"]

_WORTH_KEEPING = 64 << 20
"""Bytes from which a pack is stored: smaller models are packed in less time than a file takes."""

log = structlog.get_logger("maple.native")


@attrs.frozen(kw_only=True)
class NativeSource:
    """What to load; the words are those of the settings of the same names.

    source: a folder of any spelling, a pack, or a hub id with its revision.
    head_dtype: int8 narrows a bf16 head; anything else keeps it as stored.
    threads: that pack.
    cache_dir: where packs of other spellings are kept for the next start; None keeps none, and no pack below
    `keep_from` bytes is kept.
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
    """Weights in the kernels' layout. `folder` holds the tokenizer; `packed`: they were found packed."""

    folder: pathlib.Path
    config: PlainConfig
    shape: ModelShape
    weights: ModelWeights
    layout: Layout
    packed: bool


def locate(source: str, revision: str, cancelled: Callable[[], bool]) -> pathlib.Path:
    """As the hub's `locate`; its client is imported only where something must be asked of it."""
    path = pathlib.Path(source).expanduser()
    if path.is_dir():
        return path
    from maple.checkpoint import hub  # noqa: PLC0415 - a third of a second that a folder need not wait for

    return hub.locate(source, revision, cancelled)


def load_weights(
    options: NativeSource, *, progress: Callable[[LoadProgress], None], cancelled: Callable[[], bool]
) -> NativeWeights:
    """Load in the calling thread: map a pack, or pack another spelling and keep the pack.

    Raises `LoadError` with one line, `NotForKernels` for a checkpoint that only torch computes, and
    `LoadCancelled`.
    """
    folder = locate(options.source, options.revision, cancelled)
    if is_pack(folder):
        config = _config(folder)
        return _mapped(folder, config, Pack.open(folder, config), options, cancelled)
    checkpoint = Checkpoint.open(folder)
    layout = _layout(checkpoint, options.head_dtype)
    tracker = LoadTracker(checkpoint.parts(), progress, cancelled)
    if options.cache_dir is not None and layout.nbytes >= options.keep_from:
        cache = _Cache(options.cache_dir)
        kept = cache.find(checkpoint, layout) or cache.store(checkpoint, layout, tracker, options.threads)
        if kept is not None:
            return _mapped(folder, checkpoint.config, kept, options, cancelled)
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


def _config(folder: pathlib.Path) -> PlainConfig:
    try:
        return PlainConfig.of(read_fields(folder))
    except ValueError as e:
        raise LoadError(f"config.json of {folder.name}: {e}") from e


def _layout(checkpoint: Checkpoint, head_dtype: str) -> Layout:
    """What the kernels do not read is for torch."""
    try:
        return Layout(checkpoint.config, Forms.of(checkpoint.plan, head_dtype))
    except (LoadError, KernelError) as e:
        raise NotForKernels(str(e)) from e


def _mapped(
    folder: pathlib.Path,
    config: PlainConfig,
    pack: Pack,
    options: NativeSource,
    cancelled: Callable[[], bool],
) -> NativeWeights:
    if options.preload:
        touch(pack.arrays.values(), threads=options.threads, cancelled=cancelled)
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


class _Cache:
    """Packs of other spellings below a cache folder. What goes wrong here is logged and stops no load."""

    def __init__(self, cache_dir: pathlib.Path) -> None:
        self._store = EntryStore(cache_dir / "native", PACK_MANIFEST)

    def find(self, checkpoint: Checkpoint, layout: Layout) -> Pack | None:
        entry = self._entry(checkpoint, layout)
        if not entry.is_dir():
            return None
        try:
            return Pack.open(entry, checkpoint.config)
        except LoadError as e:
            log.warning("pack.unusable", entry=entry.name, reason=str(e))
            return None

    def store(
        self, checkpoint: Checkpoint, layout: Layout, tracker: LoadTracker, threads: int
    ) -> Pack | None:
        entry = self._entry(checkpoint, layout)
        try:
            self._store.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            free = shutil.disk_usage(self._store.root).free
            if free < layout.nbytes + layout.nbytes // 16:
                log.warning("pack.no_room", bytes=layout.nbytes, free=free)
                return None
            with self._store.workspace() as workspace:
                parts = packed_parts(checkpoint, layout, tracker, threads=threads)
                write_pack(workspace, layout, parts, {"folder": str(checkpoint.folder.resolve())})
                self._store.publish(workspace, entry.name)
            self._store.drop_outdated(entry.name, checkpoint.folder, FORMAT)
        except OSError as e:
            log.warning("pack.not_stored", entry=entry.name, reason=e.strerror or str(e))
            return None
        log.info("pack.stored", entry=entry.name, bytes=layout.nbytes)
        return self.find(checkpoint, layout)

    def _entry(self, checkpoint: Checkpoint, layout: Layout) -> pathlib.Path:
        form = ["native", FORMAT, fingerprint(), layout.forms.names()]
        return self._store.root / checkpoint_key(checkpoint.shards, *form)
