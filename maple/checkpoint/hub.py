"""Checkpoints of the hub: fetched, or found in its cache."""

from __future__ import annotations

import fnmatch
import pathlib
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import structlog
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.auto import tqdm

from maple.checkpoint.disk import existing
from maple.checkpoint.errors import LoadCancelled, LoadError
from maple.checkpoint.progress import LoadReport, unheard
from maple.checkpoint.shards import FLASHHEAD

FLOAT_CHECKPOINT = "deepgrove/maple-preview"
TWO_BIT_CHECKPOINT = "deepgrove/maple-preview-2bit-mlx"

# No code, no pickles, none of the approximate head: only what the loader and the tokenizer read.
WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "*.jinja",
    "model*.safetensors",
    "model*.index.json",
    "maple-pack.json",
)
UNWANTED = (f"*{FLASHHEAD}*", "*/*")
_LOG_EVERY = 5.0

log = structlog.get_logger(__name__)


def fetch(
    source: str, revision: str, cancelled: Callable[[], bool], report: LoadReport = unheard
) -> pathlib.Path:
    """The folder of a hub id, downloaded as far as it is not in the hub's cache.

    Raises ``LoadError`` with one line, and ``LoadCancelled`` from within a download.
    """
    try:
        _announce(source, revision, cancelled)
        return pathlib.Path(_snapshot(source, revision, _bar_class(cancelled, report), dry_run=False))
    except (LoadCancelled, LoadError):
        raise
    except Exception as error:
        # The client lets the errors of its HTTP and storage libraries through, which share no base class.
        raise LoadError(_reason(source, revision, error)) from error


def cached(source: str, revision: str) -> pathlib.Path | None:
    """The folder of a hub id in the hub's cache, None where it is not, or not wholly, there; nobody is asked."""
    try:
        found = snapshot_download(
            source,
            revision=revision,
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
            local_files_only=True,
        )
    except OSError:  # not in the cache, or no cache that can be read
        return None
    return pathlib.Path(found)


def is_wanted(name: str) -> bool:
    """Whether a repository's file of that name is fetched."""
    wanted, unwanted = (any(fnmatch.fnmatch(name, each) for each in which) for which in (WANTED, UNWANTED))
    return wanted and not unwanted


def _reason(source: str, revision: str, error: Exception) -> str:
    match error:
        case GatedRepoError():
            return f"{source} is gated: accept its terms on the hub and set HF_TOKEN"
        case RepositoryNotFoundError():
            return f"{source} is neither a folder here nor a model on the hub"
        case RevisionNotFoundError():
            return f"{source} has no revision {revision}"
        case IncompleteSnapshotError():
            return f"{source} is only partly in the hub cache, and the hub cannot be reached"
        case LocalEntryNotFoundError():
            return f"{source} is not in the hub cache, and the hub cannot be reached"
    return f"{source} could not be fetched from the hub: {type(error).__name__}"


def _snapshot(source: str, revision: str, bar: type[Any], *, dry_run: bool) -> Any:
    return snapshot_download(
        source,
        revision=revision,
        allow_patterns=list(WANTED),
        ignore_patterns=list(UNWANTED),
        tqdm_class=bar,
        dry_run=dry_run,
    )


def _announce(source: str, revision: str, cancelled: Callable[[], bool]) -> None:
    """Say what a download will take before it starts; refuse one that cannot fit."""
    try:
        files = _snapshot(source, revision, _bar_class(cancelled, unheard), dry_run=True)
    except DryRunError:
        return  # offline: what the cache holds is used, or the fetch says what is missing
    size = sum(file.file_size or 0 for file in files if file.will_download)
    if size == 0:
        return
    free = shutil.disk_usage(existing(pathlib.Path(constants.HF_HUB_CACHE))).free
    log.info("hub.download", model=source, revision=revision, bytes=size, free=free)
    if source == FLOAT_CHECKPOINT:
        log.warning("hub.large", model=source, bytes=size, smaller=TWO_BIT_CHECKPOINT)
    if size > free:
        raise LoadError(f"{source} needs {size / 1e9:.1f} GB of disk, and {free / 1e9:.1f} GB are free")


def _bar_class(cancelled: Callable[[], bool], report: LoadReport) -> type[Any]:
    """The client's progress bars: drawn on a terminal, logged elsewhere; they also notice a cancel."""

    class Bar(tqdm):  # type: ignore[misc] # untyped base
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._logged = time.monotonic()
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs | {"file": sys.stderr if sys.stderr.isatty() else _Nowhere()})

        def update(self, n: float | None = 1) -> bool | None:
            if cancelled():
                raise LoadCancelled
            if not sys.stderr.isatty() and self.unit == "B" and time.monotonic() - self._logged >= _LOG_EVERY:
                self._logged = time.monotonic()
                log.info("hub.downloading", bytes=int(self.n), total=int(self.total or 0))
            drawn: bool | None = super().update(n)
            if self.unit == "B":
                report("download", int(self.n), int(self.total or 0))
            return drawn

    return Bar


class _Nowhere:
    """A stream for bars that nobody sees."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...
