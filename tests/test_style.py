"""What a linter does not hold of one style: first lines, sizes, backticks, and the name of a caught error."""

from __future__ import annotations

import io
import pathlib
import re
import tokenize
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("maple", "protocols", "plugins", "tests", "tools", "benchmarks", "examples")
PACKAGES = ("maple", "protocols", "plugins")
LARGEST = 300
"""Lines of a module: more is two rooms in one."""
SINGLE = re.compile(r"(?<!`)`[^`]+`(?!`)")


def files(folders: tuple[str, ...], *endings: str) -> list[pathlib.Path]:
    return [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in endings
        and path.stat().st_size
        and not {"data", "vendor"} & set(path.relative_to(ROOT).parts)
    ]


PYTHON = files(FOLDERS, ".py")
KERNELS = files(("maple", "tests"), ".cpp", ".h", ".inc")
PAGE = files(("maple",), ".js", ".css")


def named(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def says_what_it_is(path: pathlib.Path) -> bool:
    lines = path.read_text("utf-8").splitlines()
    first = lines[1] if lines[0].startswith("#!") else lines[0]
    opener = {".py": '"""', ".css": "/* "}.get(path.suffix, "// ")
    return first.startswith(opener) and len(first.split()) >= 2


def test_the_first_line_says_what_the_file_is() -> None:
    """A docstring or a comment of a few words, after the line that names the interpreter at most."""
    assert [named(path) for path in (*PYTHON, *KERNELS, *PAGE) if not says_what_it_is(path)] == []


def test_a_module_fits_in_ones_head() -> None:
    """No more than so many lines, of Python and of JavaScript."""
    modules = files(PACKAGES, ".py", ".js")
    lines = {named(path): len(path.read_text("utf-8").splitlines()) for path in modules}
    assert {name: count for name, count in lines.items() if count > LARGEST} == {}


def test_a_caught_error_is_called_error() -> None:
    """One name for one thing, wherever one is caught."""
    others = [
        f"{named(path)}: {name}"
        for path in PYTHON
        for name in re.findall(r"^ *except [^\n]+ as (\w{1,2}):", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert others == []


def test_only_the_kits_list_their_names() -> None:
    """Elsewhere what does not begin with an underscore is public, and is imported from where it is defined."""
    listed = re.compile("^__all__ ", re.MULTILINE)
    found = [named(path) for path in files(PACKAGES, ".py") if listed.search(path.read_text("utf-8"))]
    assert all(path.endswith("/kit.py") for path in found)


def prose(text: str) -> Iterator[str]:
    """The comments and docstrings of a module."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and before == tokenize.NEWLINE):
            yield token.string
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            before = token.type


def test_code_in_prose_has_two_backticks() -> None:
    """As reStructuredText wants it, in every docstring and comment."""
    single = [
        f"{named(path)}: {found}"
        for path in PYTHON
        if SINGLE.search(text := path.read_text("utf-8"))
        for each in prose(text)
        for found in SINGLE.findall(each)
    ]
    assert single == []
