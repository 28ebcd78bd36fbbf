"""What can go wrong between a source and a loaded model."""

from __future__ import annotations

_LONGEST = 400


class MapleModelError(Exception):
    """Base of all errors that leave this package on purpose; ``str(e)`` is one line fit for a user."""


class LoadError(MapleModelError):
    """The source cannot be loaded.

    The line names the tensor, field or file at fault, by the folder's last name and never by an absolute
    path. It is made one line of bounded length here, since names in it may come from a file that nobody has
    vouched for.
    """

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…")


class LoadCancelled(MapleModelError):
    """The caller's ``cancelled`` said yes, so the load stopped between two tensors."""

    def __init__(self) -> None:
        super().__init__("the load was cancelled")
