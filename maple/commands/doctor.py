"""`maple doctor`: look around and say what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from maple.doctor.check import Check, Finding
from maple.settings import Settings

__all__ = ["report", "run"]

_MARKS = {"good": "ok", "note": "note", "bad": "BAD"}


def run(words: list[str]) -> int:
    """Run every check with the settings given; 1 where something will not work."""
    from maple.cli import read_configuration  # noqa: PLC0415 -- which imports the commands
    from maple.doctor.checks import CHECKS  # noqa: PLC0415 -- numpy and the kernels: only for this

    settings = read_configuration("doctor", words).settings
    findings = examine(CHECKS, settings)
    sys.stdout.write(report(findings) + "\n")
    return int(any(finding.level == "bad" for _, finding in findings))


def examine(checks: Iterable[type[Check]], settings: Settings) -> list[tuple[str, Finding]]:
    """What each check finds, with its title."""
    return [(check.title, check(settings).run()) for check in checks]


def report(findings: Sequence[tuple[str, Finding]]) -> str:
    """A line a finding, and its advice on a line below."""
    width = max(len(title) for title, _ in findings)
    lines = []
    for title, finding in findings:
        lines.append(f"{_MARKS[finding.level]:<5} {title:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':<{7 + width}} → {finding.advice}")
    return "\n".join(lines)
