"""What a linter does not hold of one style: first lines, and the name of a caught error."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES = [
    path
    for folder in ("maple", "protocols", "plugins", "tests", "tools", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.stat().st_size and "data" not in path.relative_to(ROOT).parts
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_first_line_says_what_the_file_is(path: pathlib.Path) -> None:
    """A docstring of a few words, after a `#!` line at most."""
    lines = path.read_text("utf-8").splitlines()
    first = lines[1] if lines[0].startswith("#!") else lines[0]
    assert first.startswith('"""')
    assert len(first.split()) >= 2


def test_a_caught_error_is_called_error() -> None:
    """One name for one thing, wherever one is caught."""
    others = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for name in re.findall(r"^ *except [^\n]+ as (\w{1,2}):", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert others == []
