"""Which blocks each session had: a file of their names a session, so that they can go with it. Functions here block."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Iterable

from maple.engine.private_files import write_file

_BLOCK = re.compile(r"[0-9a-f]{32}/[0-9a-f]{32}")


def noted(file: pathlib.Path) -> list[str]:
    """The blocks of a note; none where there is none, or it is damaged."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return [line for line in file.read_text().split() if _BLOCK.fullmatch(line)]
    return []


def write_note(folder: int, name: str, blocks: Iterable[str], used: float) -> None:
    """Put a note in place that counts as last of use at ``used``, in Unix seconds. Raises OSError."""
    write_file(folder, name, "\n".join(blocks).encode(), sync=False)
    with contextlib.suppress(FileNotFoundError):
        os.utime(name, (used, used), dir_fd=folder, follow_symlinks=False)


def only_noted_in(folder: pathlib.Path, name: str) -> set[str]:
    """The blocks of the note ``name`` that no other note in the folder has."""
    others = (set(noted(other)) for other in folder.iterdir() if other.name != name)
    return set(noted(folder / name)).difference(*others)
