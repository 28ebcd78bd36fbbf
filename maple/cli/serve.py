"""``maple serve``: start the server, and say in one line what kept it from starting."""

from __future__ import annotations

import argparse
import asyncio
import traceback

from maple_plugins.errors import ParserError
from maple_protocols.registry import ProtocolError

from maple.command import Command, read_configuration
from maple.errors import CommandFailed, MapleError
from maple.observe import logs


def _serve(given: argparse.Namespace) -> int:
    """A plugin's own fault comes with its traceback."""
    configuration = read_configuration(given)
    from maple.app import serve  # noqa: PLC0415 -- tornado and all: only where a server is wanted

    try:
        return asyncio.run(serve(configuration))
    except (MapleError, ParserError, ProtocolError) as error:
        if error.__cause__ is not None:
            logs.last_words("".join(traceback.format_exception(error.__cause__)).rstrip())
        raise CommandFailed(str(error)) from error


SERVE = Command(name="serve", help="start the server (the default)", run=_serve, settings="listed")
