"""What the documentation tells people to type works, and what it names exists."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from maple_testing.guard import HANG_GUARD

from maple.cli.main import COMMANDS, program
from maple.settings import specs, variable_name

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^```bash\n([^`]+)^```\n\n```text\n([^`]+)^```$", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
ADDRESS = "127.0.0.1:8000"


@attrs.frozen(kw_only=True)
class Block:
    """A fenced block of a page."""

    page: pathlib.Path
    number: int
    language: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.name}-{self.number}"


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        for number, found in enumerate(FENCE.finditer(page.read_text(encoding="utf-8"))):
            yield Block(page=page, number=number, language=found[1], text=found[2])


BLOCKS = list(_blocks())
FOLLOWED = {"quickstart.md", "clients.md"}
"""Pages whose blocks build on each other or need packages of their own; they have tests of their own."""
REQUESTS = [
    block
    for block in BLOCKS
    if ADDRESS in block.text and block.language in ("bash", "python") and block.page.name not in FOLLOWED
]


def _command_lines() -> Iterator[tuple[str, str]]:
    """Every command line that starts the server, from fenced blocks and from running text."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        typed = [block for block in FENCE.finditer(text) if block[1] != "text"]
        lines = [line for block in typed for line in block[2].splitlines()]
        for line in (*lines, *INLINE.findall(FENCE.sub("", text))):
            for command in line.split("&&"):
                if re.match(r"(python3 (-P )?-m )?maple( (?!=)|$)", command.strip()):
                    yield page.name, command.strip()


COMMAND_LINES = sorted(set(_command_lines()))


def test_the_pages_have_what_is_tested_here() -> None:
    """The readme shows a request by curl and one by the SDK, and how to start the server."""
    assert {block.language for block in REQUESTS if block.page.name == "README.md"} == {"bash", "python"}
    assert len(COMMAND_LINES) > 3


@pytest.mark.parametrize("block", REQUESTS, ids=lambda block: block.id)
def test_requests_are_answered(demo_server: Any, block: Block) -> None:
    """A request block, typed in as it stands, gets an answer from a server."""
    script = block.text.replace(ADDRESS, f"127.0.0.1:{demo_server.port}")
    words = (
        ["bash", "-euo", "pipefail", "-c", script]
        if block.language == "bash"
        else [sys.executable, "-c", script]
    )
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_GUARD, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr == ""
    if block.language == "bash":
        assert "choices" in json.loads(done.stdout)


EXAMPLES = [
    pytest.param(*found.groups(), id=f"{page.name}-{found[1].split(chr(10))[0][:40]}")
    for page in PAGES
    for found in EXAMPLE.finditer(page.read_text(encoding="utf-8"))
    if page.name not in FOLLOWED
]


@pytest.mark.parametrize(("command", "printed"), EXAMPLES)
def test_what_a_page_says_one_will_see_is_seen(command: str, printed: str, tmp_path: pathlib.Path) -> None:
    """A block of output right below a command is what that prints; ``…`` stands for what differs elsewhere."""
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAPLE_")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=ROOT,
        env={**clean, "PATH": path, "MAPLE_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_GUARD,
    )
    assert done.returncode == 0, done.stderr
    wanted = ".*".join(map(re.escape, printed.strip().split("…")))
    assert re.fullmatch(wanted, done.stdout.strip(), re.DOTALL), done.stdout


@pytest.mark.parametrize(("page", "line"), COMMAND_LINES, ids=[line for _, line in COMMAND_LINES])
def test_command_lines_are_understood(page: str, line: str) -> None:
    """Every flag and command that a page shows is one that the command line knows."""
    words = shlex.split(line)
    words = words[words.index("maple") + 1 :]
    command = words.pop(0) if words and not words[0].startswith("-") else "serve"
    assert command in COMMANDS, page
    if words not in (["--help"], ["--version"]) and command in ("serve", "config"):
        program()[1][command].parse_args(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_variables_are_settings(page: pathlib.Path) -> None:
    """A page names no variable that the server would refuse."""
    known = {variable_name(name) for name, spec in specs().items() if spec.variable}
    named = set(re.findall(r"\bMAPLE_[A-Z0-9_]*[A-Z0-9]\b(?!_)", page.read_text(encoding="utf-8")))
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    """Links between pages and to files of the repository have a target."""
    targets = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    assert [target for target in targets if not (page.parent / target).exists()] == []
