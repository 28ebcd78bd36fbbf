"""`maple chat`: talk to a server, or to one that is started for the conversation."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping

import platformdirs

from maple.chat.child import own_server
from maple.chat.conversation import Conversation
from maple.chat.screen import Screen
from maple.cli.parsing import CommandFailed, CommandParser, UsageError
from maple.client import Remote

__all__ = ["run"]

_HISTORY_LINES = 1000


def run(words: list[str]) -> int:
    """Converse until the input ends. Raises CommandFailed where no server, or off a terminal no answer, is had."""
    parser = CommandParser(
        prog="maple chat",
        allow_abbrev=False,
        description="Talk to a server. Without --url one is started, with serve's flags (--demo, --model-path …).",
        epilog="MAPLE_API_KEY holds the key of the server at --url. Exit codes: 0 the input ended, 1 no server "
        "or no answer, 2 a wrong flag, 130 Ctrl-C before the conversation.",
    )
    parser.add_argument("--url", metavar="URL", help="a running server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--tools", metavar="FILE", type=pathlib.Path, help="JSON list of tools; you type their results"
    )
    given, flags = parser.parse_known_args(words)
    if given.url and flags:
        raise UsageError(f"{flags[0][:64]} is a setting of a server to start: leave out --url, or it")
    screen, options = Screen(), {} if given.tools is None else {"tools": _tools(given.tools)}
    with _server(given.url, flags, screen, options) as remote, _history():
        screen.say("/help lists the commands, Ctrl-D leaves", dim=True)
        Conversation(remote, screen, patient=sys.stdin.isatty()).run()
    return 0


def _tools(file: pathlib.Path) -> list[object]:
    """The server checks each of them."""
    try:
        tools = json.loads(file.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailed(f"{file} is not JSON: {error}") from error
    if not isinstance(tools, list):
        raise CommandFailed(f"{file} is not a JSON list of tools")
    return tools


@contextlib.contextmanager
def _server(
    url: str | None, flags: list[str], screen: Screen, options: Mapping[str, object]
) -> Iterator[Remote]:
    if url:
        yield Remote(url, os.environ.get("MAPLE_API_KEY"), options)
        return
    from maple.cli.main import read_configuration  # noqa: PLC0415 -- which imports the commands

    read_configuration("chat", flags)  # a wrong flag is told before anything starts
    screen.say("starting a server …", dim=True)
    with own_server(flags) as own:
        yield Remote(own, None, options)


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing, and the lines of earlier conversations; readable by the user alone."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import readline  # noqa: PLC0415 -- changes how input() reads
    except ImportError:  # a Python built without it still reads lines
        yield
        return
    folder = pathlib.Path(os.environ.get("MAPLE_CACHE_DIR") or platformdirs.user_cache_path("maple"))
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
