"""``maple doctor``: look around and say what was found."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping

import structlog

from maple.command import Command, CommandParser, given_flags
from maple.configure import BadSetting, UnknownSetting, configure
from maple.doctor.check import Check, Finding
from maple.errors import UsageError
from maple.settings import Settings, flag_name

_MARKS = {"good": "ok", "note": "note", "bad": "BAD"}
_WIDTH = len("cache folder")
"""Of the longest title: findings are told as they are made."""


def _declare(parser: CommandParser) -> None:
    parser.add_argument(
        "--url", metavar="URL", help="look at the server there instead; MAPLE_API_KEY is its key"
    )


def _look(given: argparse.Namespace) -> int:
    """Run every check with the settings given; 1 where something will not work."""
    flags = given_flags(given)
    if given.url and flags:
        raise UsageError(
            f"{flag_name(next(iter(flags)))} is a setting of a server here: leave out --url, or it"
        )
    with _quiet():
        return tell(_remote(given.url) if given.url else _machine(flags))


def tell(findings: Iterable[tuple[str, Finding]]) -> int:
    """Print each as it comes; the exit code."""
    worst = 0
    for title, finding in findings:
        sys.stdout.write(f"{line(title, finding)}\n")
        sys.stdout.flush()
        worst |= finding.level == "bad"
    return int(worst)


def line(title: str, finding: Finding) -> str:
    """A finding on a line, and its advice on one below."""
    text = f"{_MARKS[finding.level]:<5} {title:<{_WIDTH}}  {finding.text}"
    return f"{text}\n{'':<{8 + _WIDTH}}→ {finding.advice}" if finding.advice else text


def _remote(url: str) -> Iterator[tuple[str, Finding]]:
    from maple.doctor.remote import examine_url  # noqa: PLC0415 -- only for this

    return examine_url(url, os.environ.get("MAPLE_API_KEY"))


def _machine(flags: Mapping[str, str]) -> Iterator[tuple[str, Finding]]:
    from maple.doctor.checks import CHECKS  # noqa: PLC0415 -- numpy and the kernels: only for this

    settings, faults = settle(os.environ, flags)
    good = Finding(level="good", text="every variable and flag is known and in range")
    yield from [("settings", fault) for fault in faults or [good]]
    yield from examine(CHECKS, settings)


def examine(checks: Iterable[type[Check]], settings: Settings) -> Iterator[tuple[str, Finding]]:
    """What each check finds, with its title."""
    for check in checks:
        yield check.title, check(settings).run()


def settle(environ: Mapping[str, str], flags: Mapping[str, str]) -> tuple[Settings, list[Finding]]:
    """The settings without the variables that are wrong, and a finding for each of those.

    Wrong flags are raised: they were typed just now.
    """
    left = dict(environ)
    faults: list[Finding] = []
    while True:
        try:
            return configure(left, flags).settings, faults
        except (BadSetting, UnknownSetting) as error:
            if error.name not in left:
                raise
            del left[error.name]
            advice = "correct or unset it: the server does not start like this (looked on without it)"
            faults.append(Finding(level="bad", text=str(error), advice=advice))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the log lines of what is looked at: the findings say the same."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


DOCTOR = Command(
    name="doctor",
    help="look at this machine and say what is missing",
    run=_look,
    declare=_declare,
    settings="taken",
    description="Look at this machine with the flags and variables that the server would have,\n"
    "or at a server and what stands in front of it. Nothing is changed.",
    epilog="Flags are those of maple serve. Exit codes: 0 nothing is BAD, 1 something is, 2 a wrong flag.",
)
