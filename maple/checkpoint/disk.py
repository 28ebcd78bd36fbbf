"""Folders that are not there yet."""

from __future__ import annotations

import pathlib


def existing(folder: pathlib.Path) -> pathlib.Path:
    """The folder, or the nearest one above it that is there: what is asked for the disk that it would be on."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())
