"""``maple chat``: talk to a server, or to one that is started for the conversation."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping

from maple.command import Command, CommandParser, given_flags, home_path
from maple.configure import cache_folder, configure
from maple.errors import CommandFailed, UsageError
from maple.settings import variable_name

_HISTORY_LINES = 1000


def _declare(parser: CommandParser) -> None:
    parser.add_argument(
        "question", metavar="QUESTION", nargs="*", help="ask this alone, and print the answer"
    )
    parser.add_argument("--url", metavar="URL", help="a running server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--tools", metavar="FILE", type=home_path, help="JSON list of tools; you type their results"
    )


def _chat(given: argparse.Namespace) -> int:
    """Converse until the input ends, or ask once.

    Raises CommandFailed where no server, or for a single question no answer, is had.
    """
    from maple.chat.conversation import Conversation  # noqa: PLC0415 -- rich: only for this
    from maple.chat.screen import Screen  # noqa: PLC0415
    from maple.chat.which import server  # noqa: PLC0415

    options = {} if given.tools is None else {"tools": _tools(given.tools)}
    if given.question or not sys.stdin.isatty():
        return _ask_once(given, options)
    screen = Screen()
    with server(given, screen) as remote, _history(given_flags(given)):
        screen.say("/help lists the commands, Ctrl-D leaves", dim=True)
        Conversation(remote, screen, patient=True, options=options).run()
    return 0


def _ask_once(given: argparse.Namespace, options: Mapping[str, object]) -> int:
    """One question: the words of the command line, then what is piped into it."""
    from maple.chat.conversation import Conversation  # noqa: PLC0415 -- as above
    from maple.chat.screen import Screen  # noqa: PLC0415
    from maple.chat.which import server  # noqa: PLC0415

    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
    question = "\n\n".join(part for part in (" ".join(given.question), piped) if part)
    if not question:
        raise UsageError("nothing was asked: give a question, or pipe one in")
    with server(given, None) as remote:
        conversation = Conversation(remote, Screen(alone=True), patient=False, options=options)
        conversation.ask([{"role": "user", "content": question}])
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
def _history(flags: Mapping[str, str]) -> Iterator[None]:
    """Line editing, and the lines of earlier conversations; readable by the user alone."""
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
    help='talk to a server, or ask it once: maple chat "question"',
    run=_chat,
    declare=_declare,
    settings="taken",
    description="Talk to a server: the one at --url, the one that runs here, or one that is started with serve's\n"
    "flags (--demo, --model-path …). A question, or what is piped in, is answered alone.",
    epilog="MAPLE_API_KEY holds the key of the server at --url. Exit codes: 0 the input ended, 1 no server\n"
    "or no answer, 2 a wrong flag, 130 Ctrl-C before the conversation.",
)
