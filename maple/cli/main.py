"""The command line: ``maple [serve] [flags]``, and small commands that look around.

Exit codes: 0 done (a drained server too), 1 the server could not start or failed, 2 a wrong command line,
variable or flag, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence

from maple.bench.command import BENCH
from maple.chat.command import CHAT
from maple.cli.cluster import CLUSTER
from maple.cli.completion import SHELLS, script
from maple.cli.inventory import CONFIG, PROTOCOLS, VERSION
from maple.cli.pack import PACK
from maple.cli.parsers import PARSERS
from maple.cli.scaffold import NEW_PARSER
from maple.cli.serve import SERVE
from maple.cli.sessions import SESSIONS
from maple.cli.top import TOP
from maple.command import Command, CommandParser
from maple.doctor.command import DOCTOR
from maple.errors import CommandFailed, MapleError, UsageError
from maple.observe import logs
from maple.settings import flag_name, specs

_MEANT = {
    "run": ["serve"],
    "start": ["serve"],
    "server": ["serve"],
    "ask": ["chat"],
    "ps": ["top"],
    "list": ["parsers"],
    "models": ["config"],
    "show": ["config"],
}
"""Words of other programs."""

_EPILOG = """\
maple serve --help lists every setting (--max-batch is MAPLE_MAX_BATCH too); try it: maple --demo"""


def _complete(given: argparse.Namespace) -> int:
    sys.stdout.write(script(given.shell, program()[1], COMMANDS))
    return 0


COMPLETION = Command(
    name="completion",
    help="print completion for bash, zsh or fish",
    run=_complete,
    declare=lambda parser: parser.add_argument("shell", choices=SHELLS),
    epilog='bash: eval "$(maple completion bash)"   zsh: the same, with zsh\n'
    "fish: maple completion fish | source",
)
COMMANDS: Mapping[str, Command] = {
    command.name: command
    for command in (
        SERVE,
        CHAT,
        TOP,
        PACK,
        BENCH,
        DOCTOR,
        SESSIONS,
        CLUSTER,
        PARSERS,
        NEW_PARSER,
        PROTOCOLS,
        CONFIG,
        COMPLETION,
        VERSION,
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors that a person can correct are one line on stderr."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130
    except MapleError as error:
        logs.last_words(f"maple: {error}")
        return 1 if isinstance(error, CommandFailed) else 2


def _run(words: list[str]) -> int:
    program_parser, parsers = program()
    if words[:1] == ["help"] and words[1:2] and words[1] in COMMANDS:
        words = [words[1], "--help"]
    if words[:1] in (["help"], ["-h"], ["--help"]):
        sys.stdout.write(program_parser.format_help())
        return 0
    words = ["version"] if words == ["--version"] else words
    if not words or words[0].startswith("-"):
        words = ["serve", *words]
    name = words[0]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1) or _MEANT.get(name, [])
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(COMMANDS)}"
        raise UsageError(f"{name[:64]!r} is not a command: {hint}")
    given, unknown = program_parser.parse_known_args(words)
    if unknown:
        parsers[name].unknown(unknown[0])
    return COMMANDS[name].run(given)


def program() -> tuple[CommandParser, Mapping[str, CommandParser]]:
    """The program's parser, and each command's by its name."""
    listed = "\n".join(f"  {name:<12} {command.help}" for name, command in COMMANDS.items())
    needed = "\n".join(
        f"  {flag_name(name):<20} {specs()[name].help}" for name in ("demo", "model_path", "port")
    )
    parser = CommandParser(
        prog="maple",
        usage="maple [command] [flags]",
        description=f"An OpenAI-compatible server for Maple-Preview. Commands:\n{listed}",
        epilog=f"the flags needed most:\n{needed}\n{_EPILOG}",
        add_help=False,
    )
    commands = parser.add_subparsers(help=argparse.SUPPRESS, prog="maple", parser_class=CommandParser)
    return parser, {name: command.add_to(commands) for name, command in COMMANDS.items()}
