from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
from maple_protocols import registry

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
    install("echo", {"echo": "echo_protocol:Echo"})
    (root / "echo_protocol.py").write_text("class Echo:\n    name = 'echo'\n")
    assert [adapter.name for adapter in registry.adapters()] == ["chat", "echo", "models"]


def test_one_is_found_by_name_without_importing_the_others(install: Install) -> None:
    """Only the one asked for is imported."""
    install("maple-server", BUILT_IN)
    install("broken", {"broken": "no_such_module:Nothing"})
    assert registry.find("chat").name == "chat"


def test_an_unknown_name_lists_the_known_ones(install: Install) -> None:
    """The refusal tells what could have been meant."""
    install("maple-server", BUILT_IN)
    with pytest.raises(registry.UnknownProtocol, match=r"no protocol 'chta'; known are chat, models"):
        registry.find("chta")


def test_two_distributions_of_one_name_are_both_named(install: Install) -> None:
    """Which one would win is not left to the order of folders."""
    install("maple-server", BUILT_IN)
    install("acme", {"chat": "acme:Chat"})
    with pytest.raises(registry.DuplicateProtocol, match="'chat' is declared by acme and by maple-server"):
        registry.adapters()


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
        registry.adapters()
    assert isinstance(caught.value.__cause__, cause)


def test_an_entry_without_a_distribution_still_has_an_owner() -> None:
    """Messages name something even for an entry point that was made by hand."""
    from importlib.metadata import EntryPoint

    entry = EntryPoint(name="x", value="no_such_module:X", group=registry.GROUP)
    with pytest.raises(registry.BrokenProtocol, match="an unnamed distribution"):
        registry._load(entry)
