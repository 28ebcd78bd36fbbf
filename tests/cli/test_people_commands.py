"""Commands for people who write parsers and keep sessions: what they print is what is there."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tomllib

import pytest

from maple.cli.main import main

ROOT = pathlib.Path(__file__).parents[2]
SHOUT = f"{ROOT}/examples/shout_parser.py:ShoutTools"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_text_is_replayed_through_a_parser(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    """Its message, and for how many ways of cutting it that holds."""
    file = tmp_path / "output.txt"
    file.write_text('Hm.</think>Sure.\n!CALL f {"x": 1} !DONE')
    words = ("parsers", "try", SHOUT, str(file), "--reasoning", "think", "--thinking")
    code, out, _ = told(capsys, *words)
    lines = out.splitlines()
    assert code == 0
    assert lines[:3] == ["reasoning  'Hm.'", "content    'Sure.'", 'call       f {"x": 1}']
    assert lines[3].startswith("the same for ")


def test_a_parser_that_depends_on_cuts_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    """With the first cut that shows it, and exit code 1; so is what cannot be loaded or read."""
    (tmp_path / "output.txt").write_text("ab")
    (tmp_path / "cuts.py").write_text(
        "from maple_plugins.events import ContentDelta\nfrom maple_plugins.parsers.none import NoTools\n"
        "class Cuts(NoTools):\n    def feed(self, text):\n        return [ContentDelta(text + '|')]\n"
    )
    for parser, output, line in (
        (f"{tmp_path}/cuts.py:Cuts", f"{tmp_path}/output.txt", "cut as ['a', 'b'] it is another message"),
        (f"{tmp_path}/gone.py:Cuts", f"{tmp_path}/output.txt", "there is no parser file"),
        (SHOUT, f"{tmp_path}/gone.txt", "gone.txt cannot be read: No such file"),
    ):
        code, _, err = told(capsys, "parsers", "try", parser, output)
        assert (code, err.count("\n")) == (1, 1)
        assert line in err


def test_a_new_parser_passes_its_own_test(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    """A package that can be built, whose entry points name what it holds; never over something that is there."""
    folder = tmp_path / "made"
    code, out, _ = told(capsys, "new-parser", "two-words-parser", "--folder", str(folder))
    assert code == 0
    assert "maple --demo --tool-parser two_words --reasoning-parser two_words" in out
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["maple.tool_parsers"] == {"two_words": "two_words_parser:TwoWordsTools"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert "14 passed" in run.stdout
    for words, code, line in (
        (("two-words-parser", "--folder", str(folder)), 1, "is there already: nothing was written"),
        (("Two Words",), 2, "use a-z, 0-9 and -, such as acme-parser"),
    ):
        ended, _, err = told(capsys, "new-parser", *words)
        assert ended == code
        assert line in err


def test_saved_sessions_are_listed(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    """Nothing where none is saved, and no folder is a failure. test_sessions_over_http lists real ones."""
    code, _, err = told(capsys, "sessions")
    assert (code, err) == (1, "maple: no sessions are saved: MAPLE_SESSION_DIR is unset (--session-dir)\n")
    assert told(capsys, "sessions", "--session-dir", str(tmp_path / "gone"))[0] == 1
    code, out, _ = told(capsys, "sessions", "--session-dir", str(tmp_path), "--json")
    assert (code, json.loads(out)) == (0, [])
