"""Protocols are found by entry point, and refused in one line that names theirs."""

from __future__ import annotations

import hashlib
import inspect
import pathlib
import re
from collections.abc import Callable

import pytest
from maple_protocols import registry
from maple_protocols.adapter import GenerationAdapter, KeepingAdapter, ListingAdapter
from maple_protocols.anthropic.adapter import MessagesAdapter
from maple_protocols.dialect import RouteAdapter
from maple_protocols.kinds import OPTIONAL
from maple_protocols.ollama.adapter import OllamaRoutes
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.models import ModelsAdapter
from maple_protocols.openai.responses import ResponsesAdapter

from maple.http.routes import TAKEN

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "writing-a-protocol.md"
(SAMPLE,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
Install = Callable[[str, dict[str, str]], pathlib.Path]


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Lay down a distribution with protocol entry points, the only ones to be found."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])

    def lay_down(name: str, entries: dict[str, str]) -> pathlib.Path:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{key} = {value}" for key, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[maple.protocols]", *lines, ""]))
        return tmp_path

    return lay_down


BUILT_IN = {
    "models": "maple_protocols.openai.models:ModelsAdapter",
    "chat": "maple_protocols.openai.chat:ChatAdapter",
}


def test_every_declared_protocol_is_made(install: Install) -> None:
    """All distributions of the group count, in the order of their names."""
    root = install("maple-server", BUILT_IN)
    install("acme", {"generate": "acme_whole:GenerateAdapter"})
    (root / "acme_whole.py").write_text(SAMPLE)
    patterns = [found.patterns for found in registry.protocols()]
    control = "/v1/chat/completions/([^/]+)/answer"
    chat = ("/v1/chat/completions", "/v1/chat/completions/input_tokens", control)
    assert patterns == [chat, ("/generate",), ("/v1/models", "/v1/models/(.+)")]


def test_every_protocol_that_comes_along_is_whole() -> None:
    """The real entry points, beside the server's own paths."""
    assert len(registry.protocols(TAKEN)) >= 4


WHOLE: dict[type, type] = {
    GenerationAdapter: ChatAdapter,
    KeepingAdapter: ResponsesAdapter,
    ListingAdapter: ModelsAdapter,
    RouteAdapter: OllamaRoutes,
}
"""An adapter of each kind."""


def needed(kind: type) -> list[str]:
    """The members that a kind declares, but those that it may lack."""
    declared = {name for each in kind.__mro__ for name in (*inspect.get_annotations(each), *vars(each))}
    return sorted(name for name in declared - OPTIONAL if not name.startswith("_"))


def without(whole: type, name: str) -> str:
    """An adapter that is another one but for a member."""
    return f"""
from {whole.__module__} import {whole.__name__} as Whole
members = {{name: value for each in reversed(Whole.__mro__[:-1]) for name, value in vars(each).items()}}
del members[{name!r}]
GenerateAdapter = type("GenerateAdapter", (), members)
"""


def having(name: str, value: str) -> str:
    """The guide's adapter with another member."""
    return f"{SAMPLE}\n\nGenerateAdapter.{name} = {value}\n"


ROUTES = "class GenerateAdapter:\n    'Routes.'\n    def reply(self, call): ...\n    routes"
"""An adapter of routes, up to what they are."""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        *(
            (without(whole, name), f"lacks {name}, which a {kind.__name__} has")
            for kind, whole in WHOLE.items()
            for name in needed(kind)
            if name != "routes"  # by which its kind is told
        ),
        (without(OllamaRoutes, "routes"), "lacks path, which a GenerationAdapter has"),
        (without(MessagesAdapter, "counts"), "lacks counts, which answers its count_path"),
        (having("path", "None"), "has a path that is not a path that begins with /"),
        (having("path", "'generate'"), "has a path that is not a path that begins with /"),
        (having("closed", "'no'"), "has a closed that is not True or False"),
        (having("prompt_param", "b'text'"), "has a prompt_param that is not a string"),
        (having("request", "dict"), "has a request that is not an attrs class"),
        (having("answers", "{'whole': dict}"), "has a answers that is not a mapping to attrs classes"),
        (having("structure", "'no'"), "has a structure that cannot be called"),
        (having("fold", "lambda self, ask: None"), r"has a fold that does not take \(ask, identity\)"),
        (having("__doc__", "None"), "has no docstring"),
        (having("kept", "lambda self, ask, body: None"), "lacks stored_path, which a KeepingAdapter has"),
        (having("path", "'/v1/models'"), "has the path /v1/models, which the protocol 'a' of maple-server"),
        (
            having("path", "'/v1/models/x'"),
            "has the path /v1/models/x, which the protocol 'a' of maple-server",
        ),
        (having("path", "'/health'"), "has the path /health, which the server itself serves already"),
        (having("path", "'/ui'"), "has the path /ui, which the server itself serves already"),
        (having("framing", "'xml'"), "has a framing that is not sse or ndjson"),
        (having("any_content_type", "1"), "has a any_content_type that is not True or False"),
        (having("greeting", "b''"), "has a greeting that is not a string"),
        (having("headers", "{}"), "has a headers that cannot be called"),
        (having("refusal", "lambda self: None"), r"has a refusal that does not take \(failure\)"),
        (having("parts", "()"), "has parts that are not a tuple of adapters"),
        (having("parts", "[]"), "has parts that are not a tuple of adapters"),
        (having("routes", "{'/a': ('GET',)}"), "lacks reply, which a RouteAdapter has"),
        (
            f"{ROUTES} = {{'/a': ('PUT',)}}\n",
            "has a routes that is not a mapping of paths that begin with / to GET, POST and DELETE",
        ),
        (f"{ROUTES} = {{'/a': ('GET',)}}\n    header = 1\n", "has a header that is not a string"),
        (f"{ROUTES} = {{'/readyz': ('GET',)}}\n", "has the path /readyz, which the server itself"),
        ("class GenerateAdapter:\n    'Nothing.'\n", "lacks path, which a GenerationAdapter has"),
        (
            "class GenerateAdapter:\n    'A list.'\n    paths = ('/list',)\n",
            "lacks answer, which a ListingAdapter has",
        ),
    ],
)
def test_an_incomplete_protocol_is_one_line(install: Install, source: str, words: str) -> None:
    """It names distribution, entry point and what is amiss; nothing is served by halves."""
    module = f"acme_{hashlib.sha256(source.encode()).hexdigest()}"
    install("maple-server", {"a": BUILT_IN["models"]})
    (install("acme", {"generate": f"{module}:GenerateAdapter"}) / f"{module}.py").write_text(source)
    whole = rf"the protocol 'generate' of acme \({module}:GenerateAdapter\) {words}[^\n]*"
    with pytest.raises(registry.UnfitProtocol) as caught:
        registry.protocols(TAKEN)
    assert re.fullmatch(whole, str(caught.value))
    assert caught.value.__cause__ is None  # no traceback: the line is the whole story


def test_some_protocols_can_be_chosen(install: Install) -> None:
    """The others are not even imported; a name that none has is refused with those that there are."""
    install("maple-server", {**BUILT_IN, "broken": "nothing_like_it:None"})
    (found,) = registry.protocols(chosen=("models",))
    assert (found.name, found.distribution) == ("models", "maple-server")
    with pytest.raises(registry.UnknownProtocol, match="no protocol 'model'; there are broken, chat, models"):
        registry.protocols(chosen=("model",))


def test_a_header_lets_two_protocols_share_a_path(install: Install) -> None:
    """Once for each header."""
    root = install("maple-server", {"a": BUILT_IN["models"]})
    source = f"{ROUTES} = {{'/v1/models': ('GET',)}}\n    header = 'x-mine'\n"
    (root / "acme_mine.py").write_text(source)
    install("acme", {"b": "acme_mine:GenerateAdapter"})
    assert [found.header for found in registry.protocols()] == [None, "x-mine"]
    install("acme2", {"c": "acme_mine:GenerateAdapter"})
    with pytest.raises(registry.UnfitProtocol, match="which the protocol 'b' of acme serves already"):
        registry.protocols()


def test_two_distributions_of_one_name_are_both_named(install: Install) -> None:
    """Which one would win is not left to the order of folders."""
    install("maple-server", BUILT_IN)
    install("acme", {"chat": "acme:Chat"})
    with pytest.raises(registry.DuplicateProtocol, match="'chat' is declared by acme and by maple-server"):
        registry.protocols()


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import nothing_like_it\n", ModuleNotFoundError),
        ("", AttributeError),
        ("def Made():\n    return 1 / 0\n", ZeroDivisionError),
    ],
)
def test_a_broken_protocol_stops_with_its_own_traceback(
    install: Install, source: str, cause: type[Exception], request: pytest.FixtureRequest
) -> None:
    """The refusal names protocol, distribution and reference, and chains the plugin's own error."""
    module = f"broken_{cause.__name__.lower()}"
    (install("acme", {"made": f"{module}:Made"}) / f"{module}.py").write_text(source)
    with pytest.raises(
        registry.BrokenProtocol, match=f"'made' of acme cannot be loaded from {module}:Made"
    ) as caught:
        registry.protocols()
    assert isinstance(caught.value.__cause__, cause)


def test_an_entry_without_a_distribution_still_has_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name something even for an entry point that was made by hand."""
    from importlib.metadata import EntryPoint

    entry = EntryPoint(name="x", value="no_such_module:X", group=registry.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: (entry,))
    with pytest.raises(registry.BrokenProtocol, match="an unnamed distribution"):
        registry.protocols()
