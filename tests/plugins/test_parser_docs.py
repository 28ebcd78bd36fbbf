"""The documentation's code: every block and the sample parser run as they are printed."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tomllib

import maple_plugins
import pytest
from maple_plugins.registry import GROUPS, reasoning_parser, tool_parser

ROOT = pathlib.Path(__file__).parents[2]
SDK = pathlib.Path(maple_plugins.__file__).parents[1]
DOCUMENT = ROOT / "docs" / "writing-a-parser.md"
SAMPLE = ROOT / "examples" / "shout_parser.py"
BLOCK = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _pytest(folder: pathlib.Path, file: str) -> str:
    """What pytest prints for a file, which must pass."""
    path = os.pathsep.join([str(folder), str(SDK)])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.fixture
def blocks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The blocks of the document by name or language; the named ones are files in the current directory."""
    monkeypatch.chdir(tmp_path)
    found = {}
    for language, name, text in BLOCK.findall(DOCUMENT.read_text("utf-8")):
        found[name or language] = text
        if name:
            (tmp_path / name).write_text(text, "utf-8")
    return found


def test_every_block_is_covered_here(blocks: dict[str, str]) -> None:
    """A new block needs a test of its own; the diagram has no language, commands and prints are test_docs.py's."""
    assert set(blocks) == {"", "acme.py", "test_acme.py", "bash", "text", "console", "pyproject.toml"}


def test_the_documented_parser_keeps_its_contract(blocks: dict[str, str], tmp_path: pathlib.Path) -> None:
    """The documented tests pass on the documented parser."""
    assert blocks["acme.py"]
    assert "14 passed" in _pytest(tmp_path, "test_acme.py")


def test_the_documented_command_names_the_documented_classes(blocks: dict[str, str]) -> None:
    """Both specs of the command line load from the current directory."""
    (tools,) = re.findall(r"--tool-parser (\S+)", blocks["console"])
    (reasoning,) = re.findall(r"--reasoning-parser (\S+)", blocks["console"])
    assert tool_parser(tools).markers == ("<call ", "</call>")
    assert reasoning_parser(reasoning).prompt_ends_inside("<thought>\n")


def test_the_documented_entry_points_are_read(blocks: dict[str, str]) -> None:
    """The groups are those that the registry reads, the targets are in the documented file."""
    declared = tomllib.loads(blocks["pyproject.toml"])["project"]["entry-points"]
    assert set(declared) == set(GROUPS.values())
    choose = {GROUPS["tool"]: tool_parser, GROUPS["reasoning"]: reasoning_parser}
    for group, points in declared.items():
        for target in points.values():
            module, _, name = target.partition(":")
            assert choose[group](f"./{module}.py:{name}").__name__ == name


def test_the_sample_parser_is_short_and_passes() -> None:
    """At most 30 lines with its test, and it runs as it stands."""
    assert len(SAMPLE.read_text("utf-8").splitlines()) <= 30
    assert "14 passed" in _pytest(SAMPLE.parent, SAMPLE.name)


def test_the_sample_parser_is_served_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the spec that the README gives."""
    monkeypatch.chdir(ROOT)
    assert tool_parser("./examples/shout_parser.py:ShoutTools").__name__ == "ShoutTools"


def test_the_readme_prints_the_sample_parser() -> None:
    """Once, and word for word."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert (
        readme.count(f"```python\n{SAMPLE.read_text('utf-8')}```\n") == readme.count("class ShoutTools") == 1
    )
