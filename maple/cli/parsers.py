"""``maple parsers``: which are installed, and what one of them makes of a recorded output."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import TYPE_CHECKING

from maple.command import Command, CommandParser
from maple.errors import CommandFailed

if TYPE_CHECKING:
    from maple_plugins.fold import Message


def _declare(parser: CommandParser) -> None:
    actions = parser.add_subparsers(dest="action", parser_class=CommandParser, metavar="try")
    attempt = actions.add_parser(
        "try",
        description="Replay a model's raw output through parsers, whole and cut in every way.",
        epilog="Exit codes: 0 one message however it is cut, 1 another one for some cut, or no such parser or file.",
    )
    attempt.add_argument("parser", metavar="PARSER", help="a tool parser: a name or ./file.py:Class")
    attempt.add_argument("output", metavar="OUTPUT", help="a file with the raw text, - for standard input")
    attempt.add_argument("--reasoning", metavar="PARSER", default="none", help="a reasoning parser (none)")
    attempt.add_argument("--thinking", action="store_true", help="the text begins within the reasoning")


def _run(given: argparse.Namespace) -> int:
    return _try(given) if given.action else _list()


def _list() -> int:
    from maple_plugins.registry import installed  # noqa: PLC0415 -- reads every distribution's metadata

    rows = [(info.kind, info.name, info.distribution, info.target) for info in installed()]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for row in rows:
        sys.stdout.write("  ".join([*map(str.ljust, row[:3], widths), row[3]]) + "\n")
    return 0


def _try(given: argparse.Namespace) -> int:
    """Tell the message, or the first cut that changes it."""
    from maple_plugins.errors import ParserError  # noqa: PLC0415
    from maple_plugins.kit import ContractViolation, ParserCase, random_cuts, replay, single_splits  # noqa: PLC0415
    from maple_plugins.registry import reasoning_parser, tool_parser  # noqa: PLC0415

    try:
        tools, reasoning = tool_parser(given.parser), reasoning_parser(given.reasoning)
        case = ParserCase(name=given.output, raw=_text(given.output), in_reasoning=given.thinking)
        whole = replay(case, [case.raw], reasoning=reasoning, tools=tools)
        cuts = [list(case.raw), *single_splits(case.raw), *random_cuts(case.raw)]
        for pieces in cuts:
            if (other := replay(case, pieces, reasoning=reasoning, tools=tools)) != whole:
                raise CommandFailed(f"cut as {pieces} it is another message: {other}, not {whole}")
    except (ParserError, ContractViolation) as error:
        raise CommandFailed(str(error)) from error
    sys.stdout.write(f"{_told(whole)}\nthe same for {len(cuts)} ways of cutting it\n")
    return 0


def _text(output: str) -> str:
    try:
        return sys.stdin.read() if output == "-" else pathlib.Path(output).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CommandFailed(f"{output} cannot be read: {reason}") from error


def _told(message: Message) -> str:
    parts = [("reasoning", message.reasoning), ("content", message.content)]
    lines = [f"{name:<9}  {text!r}" for name, text in parts if text is not None]
    return "\n".join([*lines, *(f"call       {call.name} {call.arguments}" for call in message.calls)])


PARSERS = Command(
    name="parsers",
    help="list the parsers that are installed, or try one on a text",
    run=_run,
    declare=_declare,
    epilog="maple parsers try ./acme.py:AcmeTools output.txt   replays a text",
)
