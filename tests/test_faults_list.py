"""The list of faults names tests that are there."""

from __future__ import annotations

import pathlib
import re

HERE = pathlib.Path(__file__).parent


def test_every_fault_has_a_test() -> None:
    """All of 36, each by file and name."""
    text = (HERE / "faults.md").read_text("utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|[^|]*\| (.*) \|$", text, re.MULTILINE)
    assert sorted(int(number) for numbers, _ in rows for number in numbers.split(",")) == list(range(1, 37))
    for numbers, cell in rows:
        named = re.findall(r"`(\S+\.py)`: ((?:`test_\w+`(?:, )?)+)", cell)
        assert named, numbers
        for file, names in named:
            code = (HERE / file).read_text("utf-8")
            missing = [name for name in re.findall(r"test_\w+", names) if f"def {name}(" not in code]
            assert not missing, (numbers, file)
