"""A third party's distribution: built into a wheel, installed into a folder, and run from there."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import maple_plugins
import pytest

SOURCE = pathlib.Path(__file__).parent / "acme-parser"
SDK = pathlib.Path(maple_plugins.__file__).parents[1]


class Acme:
    """The installed distribution, and a Python that sees it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.source = folder / "acme-parser"
        self._target = folder / "site"
        shutil.copytree(SOURCE, self.source)
        self._pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(self.source))
        (self.wheel,) = folder.glob("*.whl")
        self._pip("install", "--target", str(self._target), str(self.wheel))

    def _pip(self, command: str, *words: str) -> None:
        offline = ("--no-deps", "--no-index", "--disable-pip-version-check")
        run = subprocess.run(
            [sys.executable, "-m", "pip", command, "--quiet", *offline, *words],
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the distribution installed beside the SDK; the source folder is the current one."""
        path = os.pathsep.join([str(self._target), str(SDK)])
        return subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            cwd=self.source,
            env={**os.environ, "PYTHONPATH": path},
        )

    def script(self, text: str) -> str:
        """What a script prints; it must not fail."""
        run = self.python("-c", textwrap.dedent(text))
        assert (run.returncode, run.stderr) == (0, "")
        return run.stdout


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Acme:
    return Acme(tmp_path_factory.mktemp("acme"))


def test_it_is_listed_with_its_distribution(acme: Acme) -> None:
    """Beside the built-in parsers, without being imported."""
    printed = acme.script(
        """
        import sys
        from maple_plugins.registry import installed
        for info in installed():
            if info.distribution == "acme-parser":
                print(info.kind, info.name, info.target)
        assert "acme_parser" not in sys.modules
        """
    )
    assert printed.splitlines() == [
        "reasoning acme acme_parser:AcmeReasoning",
        "tool acme acme_parser.tools:AcmeTools",
        "tool acme_broken acme_parser.broken:Tools",
    ]


def test_it_is_chosen_by_name_and_splits_an_answer(acme: Acme) -> None:
    """Reasoning, content and a call, from the wheel."""
    printed = acme.script(
        """
        from maple_plugins.kit import ParserCase, replay
        from maple_plugins.registry import reasoning_parser, tool_parser
        raw = '[[Hm.]]Sure.\\n<call f>{"x": 1}</call>'
        case = ParserCase(name="acme", raw=raw)
        print(replay(case, raw, reasoning=reasoning_parser("acme"), tools=tool_parser("acme")))
        """
    )
    expected = (
        "Message(reasoning='Hm.', content='Sure.', calls=(ToolCall(name='f', arguments='{\"x\": 1}'),))"
    )
    assert printed.strip() == expected


def test_its_own_tests_pass(acme: Acme) -> None:
    """The contract kit, run by pytest as the third party would."""
    run = acme.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert run.returncode == 0, run.stdout
    assert "14 passed" in run.stdout


def test_its_import_error_shows_its_traceback(acme: Acme) -> None:
    """A broken plugin stops the start with its own lines."""
    run = acme.python("-c", "from maple_plugins.registry import tool_parser; tool_parser('acme_broken')")
    assert run.returncode == 1
    assert "broken.py" in run.stderr
    assert "RuntimeError: acme's own mistake" in run.stderr
    assert "ParserImportError: importing acme_parser.broken:Tools failed" in run.stderr


def test_it_depends_on_no_heavy_package(acme: Acme) -> None:
    """Neither torch nor tornado is imported for a parser."""
    printed = acme.script(
        """
        import sys
        from maple_plugins.registry import reasoning_parser, tool_parser
        reasoning_parser("acme"), tool_parser("acme")
        print([name for name in ("torch", "tornado", "transformers", "numpy") if name in sys.modules])
        """
    )
    assert printed.strip() == "[]"
