"""``maple completion SHELL``: a script that completes commands, flags and the choices of flags."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from maple.command import Command, CommandParser
from maple.settings import flag_name, specs

SHELLS = ("bash", "zsh", "fish")

_OF_KIND = {
    "bool": ("true", "false"),
    "auto_bool": ("auto", "true", "false"),
    "device": ("auto", "cpu", "cuda", "mps"),
}
"""The likeliest values of settings that are no choice among named ones."""

Parsers = Mapping[str, CommandParser]


def script(shell: str, parsers: Parsers, commands: Mapping[str, Command]) -> str:
    """The script for one shell, from the commands' own definitions."""
    if shell == "fish":
        return _fish(parsers, commands)
    # Zsh runs bash's script.
    begin = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    return (begin if shell == "zsh" else "") + _bash(parsers)


def _flags(parser: CommandParser) -> Mapping[str, argparse.Action]:
    """The long flags of a command, but for ``--help``."""
    long = {name: each for each in parser.flags for name in each.option_strings if name.startswith("--")}
    return {name: action for name, action in long.items() if name != "--help"}


def _words(parser: CommandParser) -> tuple[str, ...]:
    """What a command takes beside flags, where that is one of a few words."""
    return tuple(word for each in parser.flags if not each.option_strings for word in each.choices or ())


def _bash(parsers: Parsers) -> str:
    actions = {name: action for parser in parsers.values() for name, action in _flags(parser).items()}
    choices = "\n".join(
        f'        {flag}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); return ;;'
        for flag, action in actions.items()
        if (words := _choices(action))
    )
    flags = "\n".join(
        f"        {'-*|' if name == 'serve' else ''}{name}) "
        f'flags="{" ".join(_flags(parser))}" words="{" ".join(_words(parser))}" ;;'
        for name, parser in parsers.items()
    )
    return f"""\
_maple() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" flags="" words=""
    COMPREPLY=()
    case "$before" in
{choices}
    esac
    if [[ $COMP_CWORD -eq 1 && $word != -* ]]; then
        COMPREPLY=($(compgen -W "{" ".join([*parsers, "help"])}" -- "$word"))
        return
    fi
    case "$command" in
{flags}
        help) words="{" ".join(parsers)}" ;;
    esac
    if [[ $word == -* ]]; then
        words="$flags"
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _maple maple
"""


def _choices(action: argparse.Action) -> tuple[str, ...]:
    """The words that a flag takes: a setting's are checked by its reader, so that argparse has none."""
    named = {flag_name(name): spec.choices or _OF_KIND.get(spec.kind, ()) for name, spec in specs().items()}
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
        if words := _words(parser):
            lines.append(f"complete -c maple{place} -f -a {_quoted(' '.join(words))}")
    lines.append(
        f"complete -c maple -n '__fish_seen_subcommand_from help' -f -a {_quoted(' '.join(parsers))}"
    )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Single quotes, as fish reads them."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
