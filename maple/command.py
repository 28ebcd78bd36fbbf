"""What commands are made of, and how their flags are read: the room below every command."""

from __future__ import annotations

import argparse
import difflib
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

import attrs

from maple.configure import FALSE_WORDS, TRUE_WORDS, Configuration, configure
from maple.errors import UsageError
from maple.settings import Spec, flag_name, specs


class CommandParser(argparse.ArgumentParser):
    """Argparse with our one-line errors, that tells its flags to the completion."""

    def __init__(self, **options: Any) -> None:
        self.flags: list[argparse.Action] = []
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """As argparse's."""
        action = super().add_argument(*names, **options)
        self.flags.append(action)
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, but a boolean flag takes the next word for its value only where that is one."""
        words = [*(sys.argv[1:] if args is None else args)]
        bare = {name for action in self.flags if action.const == "true" for name in action.option_strings}
        for at, (word, following) in enumerate(itertools.pairwise([*words, ""])):
            if word in bare and following.lower() not in TRUE_WORDS | FALSE_WORDS:
                words[at] = f"{word}=true"
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; ``config`` has the flags of ``serve``."""
        prog = "maple serve" if self.prog == "maple config" else self.prog
        raise UsageError(f"{message} ({prog} --help lists the flags)")

    def unknown(self, word: str) -> NoReturn:
        """Raise UsageError for a word that is no flag of ours, with the nearest that is one."""
        known = [name for action in self.flags for name in action.option_strings]
        near = difflib.get_close_matches(word.split("=", maxsplit=1)[0], known, n=1)
        self.error(f"unknown argument {word[:64]!r}" + (f", did you mean {near[0]}?" if near else ""))


@attrs.frozen(kw_only=True)
class Command:
    """A command as help, dispatch and completion know it. ``run`` takes the parsed words and returns the exit code.

    settings: whether every setting is a flag of it, and whether its help lists them.
    """

    name: str
    help: str
    run: Callable[[argparse.Namespace], int]
    declare: Callable[[CommandParser], object] = lambda parser: None
    settings: Literal["none", "taken", "listed"] = "none"
    description: str = attrs.field(default=attrs.Factory(lambda self: self.help, takes_self=True))
    epilog: str | None = None

    def add_to(self, commands: argparse._SubParsersAction[CommandParser]) -> CommandParser:
        """Make its parser, below the program's."""
        parser = commands.add_parser(self.name, description=self.description, epilog=self.epilog)
        self.declare(parser)
        if self.settings != "none":
            for name, spec in specs().items():
                if spec.flag:
                    _add_setting(parser, name, spec, listed=self.settings == "listed")
        return parser


def _add_setting(parser: CommandParser, name: str, spec: Spec, *, listed: bool) -> None:
    """Values stay text, so that variables and flags are read by the same code."""
    options = {"nargs": "?", "const": "true"} if spec.kind == "bool" else {}
    word = "BOOL" if spec.kind == "bool" else "|".join(spec.choices) or spec.kind.upper()
    help_text = spec.help if listed else argparse.SUPPRESS
    parser.add_argument(flag_name(name), dest=name, metavar=word, help=help_text, **options)


def given_flags(given: argparse.Namespace) -> Mapping[str, str]:
    """The text of every setting's flag that was given, by the setting's name."""
    return {name: text for name in specs() if (text := getattr(given, name, None)) is not None}


def read_configuration(given: argparse.Namespace) -> Configuration:
    """Settings from variables and from a command's flags; raises the settings' own errors."""
    return configure(os.environ, given_flags(given))


def agreed(question: str) -> bool:
    """Whether whoever sits at the terminal says yes; True where nobody does."""
    if not sys.stdin.isatty():
        return True
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def home_path(text: str) -> pathlib.Path:
    """A path whose ``~`` is spelled out, for argparse: shells leave the one of ``--folder=~/x`` as it is."""
    try:
        return pathlib.Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(text) from error
