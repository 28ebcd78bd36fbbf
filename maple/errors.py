"""The root of the server's own errors; every leaf carries fields, and one table maps leaves to HTTP."""

from __future__ import annotations


class MapleError(Exception):
    """Base of every error that Maple raises on purpose. ``str()`` is one line, fit for a log."""
