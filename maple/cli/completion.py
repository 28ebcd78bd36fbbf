"""`maple completion SHELL`: a script that completes commands, flags and the choices of flags."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from maple.cli.parsing import CommandParser
from maple.settings import flag_name, specs

__all__ = ["run"]

_FLAGGED = ("serve", "config", "doctor", "chat")
"""The commands that take every setting."""


def run(words: list[str]) -> int:
    """Print the script for one shell."""
    parser = CommandParser(
        prog="maple completion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='bash: eval "$(maple completion bash)"   zsh: the same, with zsh\n'
        "fish: maple completion fish | source",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    shell = parser.parse_args(words).shell
    sys.stdout.write(_fish() if shell == "fish" else _zsh() if shell == "zsh" else _bash())
    return 0


def _flags() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each setting's flag with its help and choices."""
    return {flag_name(name): (spec.help, spec.choices) for name, spec in specs().items() if spec.flag}


def _commands() -> Mapping[str, str]:
    from maple.cli.main import COMMANDS  # noqa: PLC0415 -- which imports the commands

    return COMMANDS


def _bash() -> str:
    choices = "\n".join(
        f'        {flag}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); return ;;'
        for flag, (_, words) in _flags().items()
        if words
    )
    return f"""\
_maple() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
    COMPREPLY=()
    case "$before" in
{choices}
    esac
    if [[ $COMP_CWORD -eq 1 && $word != -* ]]; then
        COMPREPLY=($(compgen -W "{" ".join(_commands())}" -- "$word"))
        return
    fi
    case "$command" in
        -*|{"|".join(_FLAGGED)}) [[ $word != -* ]] || COMPREPLY=($(compgen -W "{" ".join(_flags())}" -- "$word")) ;;
        completion) COMPREPLY=($(compgen -W "bash zsh fish" -- "$word")) ;;
    esac
}}
complete -o default -F _maple maple
"""


def _zsh() -> str:
    """Zsh runs bash's script."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    lines = [
        f"complete -c maple -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}"
        for name, text in _commands().items()
    ]
    for flag, (text, words) in _flags().items():
        values = f" -x -a {_quoted(' '.join(words))}" if words else ""
        lines.append(f"complete -c maple -l {flag.removeprefix('--')} -d {_quoted(text)}{values}")
    lines.append("complete -c maple -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Single quotes, as fish reads them."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
