"""From what a user names, a folder or a hub id, to a folder on this machine."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable

from maple.checkpoint.errors import LoadError
from maple.checkpoint.progress import LoadReport, unheard

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def locate(
    source: str, revision: str, cancelled: Callable[[], bool], report: LoadReport = unheard
) -> pathlib.Path:
    """The folder of ``source``, fetched from the hub if it is an id that is not a folder here.

    The HF_ variables are honoured: offline mode, endpoint, token, cache folder. Raises ``LoadError`` with one
    line, and ``LoadCancelled`` from within a download.
    """
    try:
        path = pathlib.Path(source).expanduser()
    except RuntimeError:
        raise LoadError(f"no home folder is known for {source}: use a path without ~") from None
    if path.is_dir():
        return path
    if path.exists():
        raise LoadError(f"{path.name} is a file, where a model folder or a hub id was expected")
    if not _HUB_ID.fullmatch(source):
        raise LoadError(f"model folder {path.name} does not exist")
    from maple.checkpoint import hub  # noqa: PLC0415 - a third of a second that a folder need not wait for

    return hub.fetch(source, revision, cancelled, report)


def locate_here(source: str, revision: str) -> pathlib.Path | None:
    """As ``locate``, but nobody is asked and nothing raised: None for what would have to be fetched.

    What is neither a hub id nor there is the path that was meant.
    """
    path = pathlib.Path(source).expanduser()
    if path.exists() or not _HUB_ID.fullmatch(source):
        return path
    from maple.checkpoint import hub  # noqa: PLC0415 - as above

    return hub.cached(source, revision)
