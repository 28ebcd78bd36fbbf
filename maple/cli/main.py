"""The command line: ``maple [serve] [flags]``, and small commands that look around.

Exit codes: 0 done (a drained server too), 1 the server could not start or failed, 2 a wrong command line,
variable or flag, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence

from maple_plugins.errors import ParserError
from maple_protocols.registry import ProtocolError

from maple import __version__
from maple.cli.parsing import CommandFailed, CommandParser, UsageError
from maple.configure import Configuration, configure
from maple.errors import MapleError
from maple.settings import Settings, Spec, flag_name, specs, variable_name

COMMANDS = {
    "serve": "start the server (the default)",
    "chat": "talk to a server, or to one started for it (--demo)",
    "pack": "pack a checkpoint into a folder that loads at once",
    "bench": "measure decoding, prefill, batches, load and memory on this machine",
    "doctor": "look at this machine and say what is missing",
    "parsers": "list the reasoning and tool parsers that are installed",
    "config": "print every setting, its value and where it came from",
    "completion": "print completion for bash, zsh or fish",
    "version": "print the version",
}
EPILOG = """\
maple serve --help lists every setting. Each is a variable too: --max-batch is MAPLE_MAX_BATCH.
try it:  maple --demo    then    curl http://127.0.0.1:8000/v1/models"""

SEPARATE = {
    "chat": "maple.chat.command",
    "pack": "maple.cli.pack",
    "bench": "maple.bench.command",
    "doctor": "maple.doctor.command",
    "completion": "maple.cli.completion",
}
"""The modules of commands that are imported only when they are asked for."""

SECRET_KINDS = frozenset({"key"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors that a person can mend are one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words and not words[0].startswith("-") else "serve"
    try:
        return _run(command, words)
    except KeyboardInterrupt:
        return 130
    except CommandFailed as error:
        print(f"maple: {error}", file=sys.stderr)  # noqa: T201 -- for the person who started it
        return 1
    except MapleError as error:
        print(f"maple: {error}", file=sys.stderr)  # noqa: T201 -- the logs are not set up yet
        return 2


def _run(command: str, words: list[str]) -> int:
    if command == "serve" and words in (["-h"], ["--help"]):
        return _print(_overview())
    if command == "serve" and words == ["--version"]:
        command, words = "version", []
    runners: Mapping[str, Callable[[list[str]], int]] = {
        "serve": _serve,
        **{name: functools.partial(_separate, name) for name in SEPARATE},
        "parsers": _parsers,
        "config": _config,
        "version": _version,
        "help": lambda words: _print(_overview()),
    }
    if command not in runners:
        near = difflib.get_close_matches(command, runners, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(COMMANDS)}"
        raise UsageError(f"{command[:64]!r} is not a command: {hint}")
    return runners[command](words)


def _separate(command: str, words: list[str]) -> int:
    """A command with a file of its own, which is imported only when it is asked for."""
    code: int = importlib.import_module(SEPARATE[command]).run(words)
    return code


def _overview() -> str:
    lines = [
        "usage: maple [command] [flags]",
        "",
        "An OpenAI-compatible server for Maple-Preview.",
        "",
        "commands:",
    ]
    lines += [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    lines += ["", "the flags needed most:"]
    lines += [
        f"  {flag_name(name):<20} {specs()[name].help}" for name in ("demo", "model_path", "host", "port")
    ]
    return "\n".join([*lines, "", EPILOG])


def _print(text: str) -> int:
    sys.stdout.write(text + "\n")
    return 0


def flag_parser(command: str) -> argparse.ArgumentParser:
    """All settings as flags; values stay text, so that variables and flags are read by the same code."""
    parser = CommandParser(prog=f"maple {command}", allow_abbrev=False, description=COMMANDS[command])
    for name, spec in specs().items():
        if spec.flag:
            _add_flag(parser, name, spec)
    return parser


def _add_flag(parser: argparse.ArgumentParser, name: str, spec: Spec) -> None:
    word = "|".join(spec.choices) or spec.kind.upper()
    if spec.kind == "bool":
        parser.add_argument(
            flag_name(name), nargs="?", const="true", metavar="BOOL", help=spec.help, dest=name
        )
    else:
        parser.add_argument(flag_name(name), metavar=word, help=spec.help, dest=name)


def read_configuration(command: str, words: list[str]) -> Configuration:
    """Settings from variables and from a command's flags; raises UsageError and the settings' own errors."""
    return configure(os.environ, read_flags(command, words))


def read_flags(command: str, words: list[str]) -> dict[str, str]:
    """The text of every flag given, by its setting's name. Raises UsageError."""
    parser = flag_parser(command)
    given, unknown = parser.parse_known_args(words)
    if unknown:
        known = [flag_name(name) for name in specs()]
        near = difflib.get_close_matches(unknown[0].split("=")[0], known, n=1)
        parser.error(f"unknown argument {unknown[0][:64]!r}" + (f", did you mean {near[0]}?" if near else ""))
    return {name: text for name, text in vars(given).items() if text is not None}


def _serve(words: list[str]) -> int:
    """What keeps the server from starting is told in one line, a plugin's own fault with its traceback."""
    configuration = read_configuration("serve", words)
    from maple.app import serve  # noqa: PLC0415 -- tornado and all: only where a server is wanted

    try:
        return asyncio.run(serve(configuration))
    except (MapleError, ParserError, ProtocolError) as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"maple: {error}", file=sys.stderr)  # noqa: T201 -- for the person who started it
        return 1


def _parsers(words: list[str]) -> int:
    from maple_plugins.registry import installed  # noqa: PLC0415 -- reads every distribution's metadata

    CommandParser(prog="maple parsers", description=COMMANDS["parsers"]).parse_args(words)
    rows = [(info.kind, info.name, info.distribution, info.target) for info in installed()]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return _print("\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows))


def _config(words: list[str]) -> int:
    configuration = read_configuration("config", words)
    return _print("\n".join(_config_line(configuration, name, spec) for name, spec in specs().items()))


def _config_line(configuration: Configuration, name: str, spec: Spec) -> str:
    label = variable_name(name) if spec.variable else flag_name(name)
    value = shown(configuration.settings, name, spec)
    return f"{label:<28} {value:<32} {configuration.sources[name]}"


def shown(settings: Settings, name: str, spec: Spec) -> str:
    """A setting's value in words; a key is never shown."""
    value = getattr(settings, name)
    if value is None:
        return "unset"
    if spec.kind in SECRET_KINDS:
        return "set"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) or "empty" if isinstance(value, tuple) else str(value)


def _version(words: list[str]) -> int:
    CommandParser(prog="maple version", description=COMMANDS["version"]).parse_args(words)
    return _print(f"maple {__version__}")
