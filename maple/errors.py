"""The roots of the server's own errors; every leaf carries fields, and one table maps leaves to HTTP."""

from __future__ import annotations


class MapleError(Exception):
    """Base of every error that Maple raises on purpose. ``str()`` is one line, fit for a log."""


class UsageError(MapleError):
    """The command line is wrong: exit code 2."""


class CommandFailed(MapleError):
    """A command could not do its work; the message is one line, the exit code 1."""
