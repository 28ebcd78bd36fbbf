"""The doctor as people run it: the command in a process of its own, and what it told."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import pytest
from maple_testing.guard import HANG_GUARD
from maple_testing.wire import environment_without

FINDING = re.compile(r"(ok|note|BAD) +(\S.{11})  (.*)")


@attrs.frozen(kw_only=True)
class Told:
    """The exit code, and each finding as (mark, text, advice) by its title; several of a title in their order."""

    code: int
    findings: Mapping[str, Sequence[tuple[str, str, str]]]

    def one(self, title: str) -> tuple[str, str, str]:
        """The only finding of that title."""
        (finding,) = self.findings[title]
        return finding

    def marked(self, *marks: str) -> set[str]:
        """Titles of which some finding has one of those marks."""
        return {title for title, found in self.findings.items() if any(one[0] in marks for one in found)}


def parse(out: str) -> Mapping[str, Sequence[tuple[str, str, str]]]:
    """The command's lines; each is a finding or the advice of the one before."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    title = ""
    for line in out.splitlines():
        if line.lstrip().startswith("→ "):
            mark, text, advice = found[title].pop()
            assert not advice
            found[title].append((mark, text, line.lstrip()[2:]))
            continue
        parts = FINDING.fullmatch(line)
        assert parts, line
        title = parts[2].strip()
        found.setdefault(title, []).append((parts[1], parts[3], ""))
    return found


Doctor = Callable[..., Told]


@pytest.fixture
def doctor(tmp_path: pathlib.Path) -> Doctor:
    """``doctor(*flags, python=[…], **variables)``: run it in a clean environment."""

    def run(*flags: str, python: Sequence[str] = (sys.executable,), **variables: str) -> Told:
        clean = environment_without("MAPLE_", "HF_", "PYTHON")
        fixed = {
            "MAPLE_CACHE_DIR": str(tmp_path / "cache"),
            "HF_HOME": str(tmp_path / "hub"),
            "PYTHONSAFEPATH": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [*python, "-m", "maple", "doctor", *flags],
            env={**clean, **fixed, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=HANG_GUARD,
        )
        assert done.stderr == ""
        return Told(code=done.returncode, findings=parse(done.stdout))

    return run


@pytest.fixture(scope="session")
def counting_server(
    scripted_server: Callable[..., contextlib.AbstractContextManager[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[int]:
    """The port of a server that says a word every 15 ms, behind the key ``sesame``."""
    folder = tmp_path_factory.mktemp("counting")
    script = folder / "script.jsonl"
    line = {"match": None, "pieces": ["</think>", *["word "] * 40], "delay_ms": 15}
    script.write_text(json.dumps(line) + "\n", encoding="utf-8")
    clean = environment_without("MAPLE_")
    environment = {**clean, "MAPLE_API_KEY": "sesame", "PYTHONSAFEPATH": "1"}
    with scripted_server(script, environment=environment, folder=folder) as port:
        yield port
