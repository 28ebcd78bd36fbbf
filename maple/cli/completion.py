"""`maple completion SHELL`: a script that completes commands, flags and the choices of flags."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from maple.command import Command, CommandParser
from maple.settings import flag_name, specs

__all__ = ["SHELLS", "script"]

SHELLS = ("bash", "zsh", "fish")

Parsers = Mapping[str, CommandParser]


def script(shell: str, parsers: Parsers, commands: Mapping[str, Command]) -> str:
    """The script for one shell, from the commands' own definitions."""
    if shell == "fish":
        return _fish(parsers, commands)
    # Zsh runs bash's script.
    begin = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    return (begin if shell == "zsh" else "") + _bash(parsers)


def _flags(parser: CommandParser) -> Mapping[str, argparse.Action]:
    """The long flags of a command, but for `--help`."""
    long = {name: each for each in parser.flags for name in each.option_strings if name.startswith("--")}
    return {name: action for name, action in long.items() if name != "--help"}


def _bash(parsers: Parsers) -> str:
    actions = {name: action for parser in parsers.values() for name, action in _flags(parser).items()}
    choices = "\n".join(
        f'        {flag}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); return ;;'
        for flag, action in actions.items()
        if (words := _choices(action))
    )
    flags = "\n".join(
        f'        {"-*|" if name == "serve" else ""}{name}) words="{" ".join(_flags(parser))}" ;;'
        for name, parser in parsers.items()
    )
    return f"""\
_maple() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words=""
    COMPREPLY=()
    case "$before" in
{choices}
    esac
    if [[ $COMP_CWORD -eq 1 && $word != -* ]]; then
        COMPREPLY=($(compgen -W "{" ".join(parsers)}" -- "$word"))
        return
    fi
    case "$command" in
{flags}
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$word"))
    elif [[ $command == completion ]]; then
        COMPREPLY=($(compgen -W "{" ".join(SHELLS)}" -- "$word"))
    fi
}}
complete -o default -F _maple maple
"""


def _choices(action: argparse.Action) -> tuple[str, ...]:
    """The words that a flag takes: a setting's are checked by its reader, so that argparse has none."""
    named = {flag_name(name): spec.choices for name, spec in specs().items()}
    return tuple(action.choices or named.get(action.option_strings[0], ()))


def _fish(parsers: Parsers, commands: Mapping[str, Command]) -> str:
    helps = {flag_name(name): spec.help for name, spec in specs().items()}
    lines = [
        f"complete -c maple -n __fish_use_subcommand -f -a {name} -d {_quoted(command.help)}"
        for name, command in commands.items()
    ]
    for name, parser in parsers.items():
        place = "" if name == "serve" else f" -n '__fish_seen_subcommand_from {name}'"
        own = {flag: each for flag, each in _flags(parser).items() if name == "serve" or flag not in helps}
        for flag, action in own.items():
            words = _choices(action)
            values = f" -x -a {_quoted(' '.join(words))}" if words else ""
            text = helps.get(flag) or action.help or ""
            lines.append(f"complete -c maple{place} -l {flag.removeprefix('--')} -d {_quoted(text)}{values}")
    lines.append(f"complete -c maple -n '__fish_seen_subcommand_from completion' -f -a '{' '.join(SHELLS)}'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Single quotes, as fish reads them."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
