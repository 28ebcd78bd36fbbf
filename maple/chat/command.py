"""`maple chat`: talk to a server, or to one that is started for the conversation."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping

from maple.chat.child import own_server
from maple.chat.conversation import Conversation
from maple.chat.screen import Screen
from maple.client import Remote
from maple.command import Command, CommandParser, given_flags, home_path, read_configuration
from maple.configure import cache_folder, configure
from maple.errors import CommandFailed, UsageError
from maple.settings import flag_name, variable_name

__all__ = ["CHAT"]

_HISTORY_LINES = 1000


def _declare(parser: CommandParser) -> None:
    parser.add_argument("--url", metavar="URL", help="a running server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--tools", metavar="FILE", type=home_path, help="JSON list of tools; you type their results"
    )


def _chat(given: argparse.Namespace) -> int:
    """Converse until the input ends. Raises CommandFailed where no server, or off a terminal no answer, is had."""
    flags = given_flags(given)
    if given.url and flags:
        raise UsageError(
            f"{flag_name(next(iter(flags)))} is a setting of a server to start: leave out --url, or it"
        )
    screen, options = Screen(), {} if given.tools is None else {"tools": _tools(given.tools)}
    with _server(given, screen, options) as remote, _history(flags):
        screen.say("/help lists the commands, Ctrl-D leaves", dim=True)
        Conversation(remote, screen, patient=sys.stdin.isatty()).run()
    return 0


def _tools(file: pathlib.Path) -> list[object]:
    """The server checks each of them."""
    try:
        tools = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailed(f"{file} is not JSON: {error}") from error
    if not isinstance(tools, list):
        raise CommandFailed(f"{file} is not a JSON list of tools")
    return tools


@contextlib.contextmanager
def _server(given: argparse.Namespace, screen: Screen, options: Mapping[str, object]) -> Iterator[Remote]:
    if given.url:
        yield Remote(given.url, os.environ.get("MAPLE_API_KEY"), options)
        return
    read_configuration(given)  # a wrong flag is told before anything starts
    screen.say("starting a server …", dim=True)
    with own_server([f"{flag_name(name)}={text}" for name, text in given_flags(given).items()]) as own:
        yield Remote(own, None, options)


@contextlib.contextmanager
def _history(flags: Mapping[str, str]) -> Iterator[None]:
    """Line editing, and the lines of earlier conversations; readable by the user alone."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import readline  # noqa: PLC0415 -- changes how input() reads
    except ImportError:  # a Python built without it still reads lines
        yield
        return
    folder = _cache_folder(flags)
    if folder is None:
        yield
        return
    file = folder / "chat-history"
    readline.set_history_length(_HISTORY_LINES)
    with contextlib.suppress(OSError):  # none yet
        readline.read_history_file(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a folder that cannot be written costs the history alone
            folder.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)


def _cache_folder(flags: Mapping[str, str]) -> pathlib.Path | None:
    """As a server finds it; a server elsewhere has its settings to itself, so no other variable is looked at."""
    name = variable_name("cache_dir")
    return cache_folder(configure({name: os.environ.get(name, "")}, flags).settings)


CHAT = Command(
    name="chat",
    help="talk to a server, or to one started for it (--demo)",
    run=_chat,
    declare=_declare,
    settings="taken",
    description="Talk to a server. Without --url one is started, with serve's flags (--demo, --model-path …).",
    epilog="MAPLE_API_KEY holds the key of the server at --url. Exit codes: 0 the input ended, 1 no server\n"
    "or no answer, 2 a wrong flag, 130 Ctrl-C before the conversation.",
)
