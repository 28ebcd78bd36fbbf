"""Choosing a parser by name or by file."""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys
import textwrap
import traceback

import maple_plugins
import pytest
from maple_plugins.errors import (
    AmbiguousParser,
    NotAParser,
    ParserClassMissing,
    ParserError,
    ParserFileMissing,
    ParserImportError,
    UnknownParser,
)
from maple_plugins.parsers.llama_json import LlamaJsonToolParser
from maple_plugins.parsers.maple_tools import MapleToolParser
from maple_plugins.parsers.mistral import MistralToolParser
from maple_plugins.parsers.none import NoReasoning, NoTools
from maple_plugins.parsers.qwen_xml import QwenXmlToolParser
from maple_plugins.parsers.think import ThinkParser
from maple_plugins.registry import GROUPS, ParserInfo, _distribution, installed, reasoning_parser, tool_parser

SOURCES = pathlib.Path(maple_plugins.__file__).parents[1]
BUILT_IN = {
    "reasoning": ("none", "think"),
    "tool": ("hermes", "llama_json", "maple", "mistral", "none", "qwen_xml"),
}
GOOD = """
from maple_plugins.parsers.none import NoReasoning, NoTools

class Tools(NoTools):
    markers = ("<x>",)

class Reasoning(NoReasoning):
    class Inner(NoTools):
        pass
"""


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current directory, empty and not importable."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _distribute(site: pathlib.Path, name: str, lines: dict[str, str]) -> None:
    """Install a distribution by hand: metadata and entry points, which is all that the registry reads."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = [f"[{GROUPS['tool']}]", *(f"{key} = {value}" for key, value in lines.items())]
    (info / "entry_points.txt").write_text("\n".join(sections))


@pytest.fixture
def site(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder of installed distributions."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_built_in_parsers_come_through_entry_points() -> None:
    """Each is offered by this project's own distribution, and is the class it says."""
    own = [info for info in installed() if info.distribution == "maple-server"]
    assert {kind: tuple(info.name for info in own if info.kind == kind) for kind in GROUPS} == BUILT_IN
    for info in own:
        chosen = reasoning_parser(info.name) if info.kind == "reasoning" else tool_parser(info.name)
        assert f"{chosen.__module__}:{chosen.__qualname__}" == info.target


def test_names_mean_what_they_say() -> None:
    """The names that settings use, and the classes behind them."""
    assert (reasoning_parser("think"), reasoning_parser("none")) == (ThinkParser, NoReasoning)
    names = ("maple", "none", "mistral", "qwen_xml", "llama_json")
    classes = [MapleToolParser, NoTools, MistralToolParser, QwenXmlToolParser, LlamaJsonToolParser]
    assert list(map(tool_parser, names)) == classes


def test_only_the_chosen_parser_is_imported() -> None:
    """Listing imports no parser, choosing imports one."""
    script = """
        import sys
        from maple_plugins.registry import installed, tool_parser
        installed()
        assert not [name for name in sys.modules if name.startswith("maple_plugins.parsers")]
        tool_parser("mistral")
        print(*[name for name in sys.modules if name.startswith("maple_plugins.parsers.")])
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=SOURCES.parent,
        env={"PYTHONPATH": str(SOURCES)},
    )
    assert (run.stdout.split(), run.stderr) == (["maple_plugins.parsers.mistral"], "")


def test_a_third_party_parser_is_listed_and_chosen(site: pathlib.Path) -> None:
    """A distribution's entry point is all it takes."""
    (site / "acme_tools.py").write_text(GOOD)
    _distribute(site, "acme-tools", {"acme": "acme_tools:Tools"})
    assert (
        ParserInfo(kind="tool", name="acme", distribution="acme-tools", target="acme_tools:Tools")
        in installed()
    )
    assert tool_parser("acme").markers == ("<x>",)


def test_one_name_from_two_distributions_is_refused(site: pathlib.Path) -> None:
    """Neither wins: the error names both."""
    _distribute(site, "acme-one", {"acme": "one:Tools"})
    _distribute(site, "acme-two", {"acme": "two:Tools"})
    with pytest.raises(AmbiguousParser, match=r"'acme'.*acme-one, acme-two") as caught:
        tool_parser("acme")
    assert set(caught.value.distributions) == {"acme-one", "acme-two"}


def test_an_unknown_name_lists_the_known_ones(site: pathlib.Path) -> None:
    """With the nearest of them, if one is near, and of the right kind only."""
    _distribute(site, "acme-one", {"acme": "one:Tools"})
    with pytest.raises(UnknownParser, match=r"did you mean mistral\?.*acme.*hermes.*maple") as caught:
        tool_parser("mistrl")
    assert (caught.value.kind, caught.value.near) == ("tool", "mistral")
    with pytest.raises(
        UnknownParser, match="no reasoning parser is called 'acme' \\(installed: none, think"
    ) as caught:
        reasoning_parser("acme")
    assert caught.value.near is None


def test_an_unknown_name_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without any parser says so."""
    monkeypatch.setattr(sys, "path", [])
    assert installed() == ()
    with pytest.raises(UnknownParser, match="installed: none;"):
        tool_parser("maple")


def test_an_import_error_shows_the_plugins_own_traceback(site: pathlib.Path) -> None:
    """The error is chained to what the plugin raised."""
    (site / "acme_broken.py").write_text("def start():\n    return 1 / 0\n\nstart()\n")
    _distribute(site, "acme-broken", {"broken": "acme_broken:Tools", "gone": "acme_gone:Tools"})
    with pytest.raises(ParserImportError, match="importing acme_broken:Tools failed") as caught:
        tool_parser("broken")
    shown = "".join(traceback.format_exception(caught.value))
    assert "acme_broken.py" in shown
    assert "ZeroDivisionError" in shown
    with pytest.raises(ParserImportError) as caught:
        tool_parser("gone")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_class_that_is_not_there_is_named(site: pathlib.Path) -> None:
    """The module is fine, the class is missing."""
    (site / "acme_empty.py").write_text("")
    _distribute(site, "acme-empty", {"empty": "acme_empty:Tools"})
    with pytest.raises(ParserClassMissing, match="no class acme_empty:Tools"):
        tool_parser("empty")


def test_an_entry_point_without_a_distribution_is_listed_as_unknown() -> None:
    """Entry points made in memory belong to none."""
    point = importlib.metadata.EntryPoint("acme", "acme:Tools", GROUPS["tool"])
    assert _distribution(point) == "unknown"


def test_a_file_is_loaded_relative_to_the_current_directory(folder: pathlib.Path) -> None:
    """Under a name of its own, without touching sys.path, and once for all its parsers."""
    (folder / "acme.py").write_text(GOOD)
    before = list(sys.path)
    tools, reasoning = tool_parser("./acme.py:Tools"), reasoning_parser("acme.py:Reasoning")
    assert sys.path == before
    assert "acme" not in sys.modules
    assert tools.markers == ("<x>",)
    assert tools.__module__ == reasoning.__module__
    assert tool_parser(f"{folder / 'acme.py'}:Tools") is tools
    assert tool_parser("./acme.py:Reasoning.Inner").__qualname__ == "Reasoning.Inner"


def test_a_file_shadows_no_module(folder: pathlib.Path) -> None:
    """A file may be called like a module of the standard library."""
    (folder / "json.py").write_text(GOOD)
    assert tool_parser("./json.py:Tools").markers == ("<x>",)
    assert sys.modules["json"].__file__ != str(folder / "json.py")


def test_a_file_that_raises_can_be_mended(folder: pathlib.Path) -> None:
    """A failed import leaves nothing behind."""
    (folder / "acme.py").write_text("raise SystemError('not today')")
    with pytest.raises(ParserImportError, match=r"importing \./acme\.py:Tools failed") as caught:
        tool_parser("./acme.py:Tools")
    assert isinstance(caught.value.__cause__, SystemError)
    (folder / "acme.py").write_text("# mended\n" + GOOD)
    assert tool_parser("./acme.py:Tools").markers == ("<x>",)


@pytest.mark.parametrize("spec", ["./gone.py:Tools", ".:Tools", ":Tools"])
def test_a_missing_file_is_named(folder: pathlib.Path, spec: str) -> None:
    """A folder is no file either."""
    with pytest.raises(ParserFileMissing, match="there is no parser file") as caught:
        tool_parser(spec)
    assert caught.value.path == spec.removesuffix(":Tools")


def test_a_file_that_is_no_python_is_refused(folder: pathlib.Path) -> None:
    """Only a name that Python can import from is taken."""
    (folder / "acme.txt").write_text(GOOD)
    with pytest.raises(ParserImportError) as caught:
        tool_parser("./acme.txt:Tools")
    assert "acme.txt is no Python file" in str(caught.value.__cause__)


@pytest.mark.parametrize("name", ["Missing", "", "Reasoning.Missing"])
def test_a_missing_class_of_a_file_is_named(folder: pathlib.Path, name: str) -> None:
    """Nothing else of the file is taken instead."""
    (folder / "acme.py").write_text(GOOD)
    with pytest.raises(ParserClassMissing) as caught:
        tool_parser(f"./acme.py:{name}")
    assert caught.value.target == f"./acme.py:{name}"


WRONG = """
from maple_plugins.blocks import BlockToolParser

class Whole:
    markers = ("<x>",)
    def __init__(self, context): pass
    def feed(self, text): return ()
    def close(self, finish): return ()
    @classmethod
    def prompt_ends_inside(cls, prompt): return False

function = Whole.feed
class NoFeed(Whole): feed = None
class NoClose(Whole): feed = close = None
class NoMarkers(Whole): markers = None
class ListedMarkers(Whole): markers = ["<x>"]
class EmptyMarker(Whole): markers = ("",)
class NumberMarker(Whole): markers = (1,)
class NoContext(Whole):
    def __init__(self): pass
class TooMuch(Whole):
    def __init__(self, context, more): pass
class Abstract(BlockToolParser): markers = ("<x>",)
"""


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("function", "it is not a class"),
        ("NoFeed", "it has no method feed"),
        ("NoClose", "it has no method feed, close"),
        ("NoMarkers", "its markers are no tuple of non-empty strings"),
        ("ListedMarkers", "its markers are no tuple of non-empty strings"),
        ("EmptyMarker", "its markers are no tuple of non-empty strings"),
        ("NumberMarker", "its markers are no tuple of non-empty strings"),
        ("NoContext", "it cannot be made from one ParserContext"),
        ("TooMuch", "it cannot be made from one ParserContext"),
        ("Abstract", "it cannot be made from one ParserContext"),
    ],
)
def test_what_does_not_keep_the_contract_is_refused(folder: pathlib.Path, name: str, reason: str) -> None:
    """With the reason, at the start and not at the first request."""
    (folder / "wrong.py").write_text(WRONG)
    with pytest.raises(NotAParser, match=reason) as caught:
        tool_parser(f"./wrong.py:{name}")
    assert (caught.value.kind, caught.value.target) == ("tool", f"./wrong.py:{name}")


def test_a_reasoning_parser_must_say_where_reasoning_ends(folder: pathlib.Path) -> None:
    """A tool parser is no reasoning parser."""
    (folder / "wrong.py").write_text(WRONG)
    with pytest.raises(NotAParser, match="it has no property reasoning_end"):
        reasoning_parser("./wrong.py:Whole")
    with pytest.raises(NotAParser, match="it has no method prompt_ends_inside"):
        reasoning_parser(f"{SOURCES}/maple_plugins/parsers/maple_tools.py:MapleToolParser")


@pytest.mark.parametrize("spec", ["nobody", "./gone.py:Tools", "./wrong.py:function", "./wrong.py:Missing"])
def test_every_refusal_is_one_line(folder: pathlib.Path, spec: str) -> None:
    """One base class, and a message that fits a start-up error."""
    (folder / "wrong.py").write_text(WRONG)
    with pytest.raises(ParserError) as caught:
        tool_parser(spec)
    assert "\n" not in str(caught.value)
