"""Scripts of recordings: read, and refused by line."""

from __future__ import annotations

import json
import pathlib

import pytest

from maple.engine.api import Piece
from maple.scripted.script import Recording, ScriptError, read_script


def write(folder: pathlib.Path, *lines: object) -> pathlib.Path:
    path = folder / "demo.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return path


def test_every_key_is_read(tmp_path: pathlib.Path) -> None:
    """A full line and a minimal one are read in order, blank lines between them passed over."""
    full = {
        "match": "maple",
        "on": "any",
        "turn": 2,
        "pieces": ["a", "🍁", ""],
        "finish": "length",
        "delay_ms": 2.5,
    }
    path = write(tmp_path, full, "", {"pieces": []})
    assert read_script(path) == (
        Recording(match="maple", on="any", turn=2, pieces=("a", "🍁", ""), finish="length", delay_ms=2.5),
        Recording(match=None, on="user", turn=None, pieces=(), finish="stop", delay_ms=0),
    )


def test_offsets_are_counted_in_characters() -> None:
    """A piece begins where the characters of the pieces before it end."""
    assert Recording(pieces=("ab", "🍁", "", "c")).stream == (
        Piece("ab", (0,)),
        Piece("🍁", (2,)),
        Piece("", (3,)),
        Piece("c", (3,)),
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: is not valid JSON"),
        ("[]", "line 2: must be a JSON object"),
        ('"text"', "line 2: must be a JSON object"),
        ({"pieces": "abc"}, "line 2: pieces must be a list"),
        ({"pieces": ["a", 1]}, "line 2: pieces[1] must be a string"),
        ({"match": None}, "line 2: pieces is required"),
        ({"pieces": [], "match": 3}, "line 2: match must be a string"),
        ({"pieces": [], "finish": "eos"}, "line 2: finish must be one of stop, length, error"),
        ({"pieces": [], "finish": []}, "line 2: finish must be one of stop, length, error"),
        ({"pieces": [], "on": "system"}, "line 2: on must be one of user, tool, any"),
        ({"pieces": [], "turn": -1}, "line 2: turn must be at least 0"),
        ({"pieces": [], "turn": True}, "line 2: turn must be an integer"),
        ({"pieces": [], "delay_ms": -1}, "line 2: delay_ms must be at least 0 and at most 3600000"),
        ({"pieces": [], "delay_ms": True}, "line 2: delay_ms must be a number"),
        ({"pieces": [], "delay_ms": "5"}, "line 2: delay_ms must be a number"),
        ('{"pieces": [], "delay_ms": NaN}', "line 2: holds NaN, which is not JSON"),
        ('{"pieces": [], "delay_ms": 1e999}', "line 2: holds a number that overflows"),
        ({"pieces": [], "delay": 1}, "line 2: delay is not a known field"),
        ('{"pieces": ["\\ud83c"]}', "line 2: pieces[0] must not hold a lone surrogate"),
        ('{"pieces": [], "match": "\\udf41"}', "line 2: match must not hold a lone surrogate"),
        ("[" * 100_000, "line 2: is nested deeper than 64 levels"),
    ],
)
def test_a_bad_line_is_named(tmp_path: pathlib.Path, line: object, complaint: str) -> None:
    """One clear line says which line of the script is wrong, and what about it."""
    path = write(tmp_path, {"pieces": ["fine"]}, line)
    with pytest.raises(ScriptError) as caught:
        read_script(path)
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("script demo.jsonl: ")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_files_that_are_no_script_are_refused(tmp_path: pathlib.Path) -> None:
    """A missing file, an empty one and one that is not UTF-8: one line each, without the folder's name."""
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe")
    for path, complaint in (
        (tmp_path / "missing.jsonl", "cannot be read"),
        (write(tmp_path, "", ""), "holds no recording"),
        (binary, "is not UTF-8"),
    ):
        with pytest.raises(ScriptError, match=complaint) as caught:
            read_script(path)
        assert str(tmp_path) not in str(caught.value)
