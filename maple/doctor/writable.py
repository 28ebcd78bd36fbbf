"""Whether a folder can be written, found out without leaving anything in it."""

from __future__ import annotations

import pathlib
import tempfile

from maple.checkpoint.disk import existing


def write_fault(folder: pathlib.Path) -> str:
    """Why nothing can be written there, tried with a file that has no name; empty where it can."""
    place = existing(folder)
    if not place.is_dir():
        return f"{place} is a file"
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"maple")
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}"
    return ""
