"""What the commands' flags have in common."""

from __future__ import annotations

import argparse
from typing import NoReturn

from maple.errors import MapleError

__all__ = ["CommandFailed", "CommandParser", "UsageError", "positive"]


class UsageError(MapleError):
    """The command line is wrong."""


class CommandFailed(MapleError):
    """The command could not do its work; the message is one line."""


class CommandParser(argparse.ArgumentParser):
    """Argparse with our one-line errors."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message} ({self.help_command} --help lists the flags)")

    @property
    def help_command(self) -> str:
        """Whose help lists the flags: `config` has those of `serve`."""
        return "maple serve" if self.prog == "maple config" else self.prog


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value
