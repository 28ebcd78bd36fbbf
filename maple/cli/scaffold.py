"""``maple new-parser NAME``: write a small package that works, to be changed into what is wanted."""

from __future__ import annotations

import argparse
import pathlib
import re
import string
import sys
from collections.abc import Mapping

from maple.command import Command, CommandParser, home_path
from maple.errors import CommandFailed, UsageError

TEMPLATES = pathlib.Path(__file__).with_name("templates")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def _declare(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="of the package, such as acme-parser")
    parser.add_argument(
        "--folder", metavar="DIR", type=home_path, help="where it is written; ./NAME by default"
    )


def _new_parser(given: argparse.Namespace) -> int:
    folder, names = _written("parser", given)
    sys.stdout.write(
        f"{folder} holds a parser and its test. Next:\n"
        f"  cd {folder} && python3 -m pip install -e .[test] && python3 -m pytest\n"
        f"  maple --demo --tool-parser {names['word']} --reasoning-parser {names['word']}\n"
    )
    return 0


def _written(kind: str, given: argparse.Namespace) -> tuple[pathlib.Path, Mapping[str, str]]:
    """Write a kind's files. Raises UsageError for a bad name, CommandFailed where nothing can be written."""
    if not _NAME.fullmatch(given.name):
        raise UsageError(
            f"{given.name[:64]!r} is no name for a package: use a-z, 0-9 and -, such as acme-{kind}"
        )
    word = given.name.removesuffix(f"-{kind}")
    names = {
        "name": given.name,
        "module": given.name.replace("-", "_"),
        "word": word.replace("-", "_"),
        "title": "".join(part.capitalize() for part in word.split("-")),
    }
    folder: pathlib.Path = given.folder or pathlib.Path(given.name)
    try:
        folder.mkdir(parents=True)
        for template in sorted((TEMPLATES / kind).iterdir()):
            text = string.Template(template.read_text(encoding="utf-8")).substitute(names)
            (folder / template.stem.replace("module", names["module"])).write_text(text, encoding="utf-8")
    except FileExistsError as error:
        raise CommandFailed(f"{folder} is there already: nothing was written") from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or folder}: {error.strerror}") from error
    return folder, names


NEW_PARSER = Command(
    name="new-parser",
    help="write a package with a parser of your own",
    run=_new_parser,
    declare=_declare,
    epilog="docs/writing-a-parser.md says what a parser must keep.",
)
