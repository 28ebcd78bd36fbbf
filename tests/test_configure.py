"""Settings: read from variables and flags, or refused in one line."""

from __future__ import annotations

import pathlib
import re

import attrs
import pytest

from maple.configure import BadSetting, UnknownSetting, configure, prefix_folder
from maple.settings import Settings, flag_name, specs, variable_name


def test_defaults_are_the_contracts() -> None:
    """Without variables and flags, every setting has its default."""
    assert configure({}, {}).settings == Settings()


def test_a_flag_wins_over_its_variable() -> None:
    """Flags win, and the source says so."""
    configuration = configure({"MAPLE_PORT": "1", "MAPLE_HOST": "::1"}, {"port": "2"})
    assert (configuration.settings.port, configuration.settings.host) == (2, "::1")
    assert configuration.sources["port"] == "flag"
    assert configuration.sources["host"] == "environment"
    assert configuration.sources["device"] == "default"


@pytest.mark.parametrize("blank", ["", "  "])
def test_blank_means_default(blank: str) -> None:
    """A blank variable counts as unset."""
    assert configure({"MAPLE_PORT": blank}, {}).settings.port == 8000


@pytest.mark.parametrize(
    ("level", "given", "folder"),
    [
        ("reference", None, None),
        ("extended", None, "cache/prefixes"),
        ("reference", "here", "here"),
        ("extended", " ", None),
    ],
)
def test_prefixes_are_kept_by_the_level_unless_said_otherwise(
    level: str, given: str | None, folder: str | None
) -> None:
    """In the cache folder at the extended level, where it is said, and blank is nowhere."""
    named = {} if given is None else {"MAPLE_PREFIX_DIR": given}
    settings = configure({"MAPLE_CACHE_DIR": "cache", "MAPLE_API_LEVEL": level, **named}, {}).settings
    assert prefix_folder(settings) == (folder and pathlib.Path(folder))


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_key_stops_the_start(blank: str) -> None:
    """A blank key would open the server to everybody."""
    with pytest.raises(BadSetting, match="MAPLE_API_KEY"):
        configure({"MAPLE_API_KEY": blank}, {})


@pytest.mark.parametrize("word", ["1", "true", "YES", "on"])
def test_true_words(word: str) -> None:
    assert configure({"MAPLE_STRICT_MODEL": word}, {}).settings.strict_model is True


@pytest.mark.parametrize("word", ["0", "False", "no", "OFF"])
def test_false_words(word: str) -> None:
    assert configure({"MAPLE_ENABLE_THINKING": word}, {}).settings.enable_thinking is False


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("MAPLE_PORT", "http"),
        ("MAPLE_PORT", "65536"),
        ("MAPLE_PORT", "-1"),
        ("MAPLE_PORT", "8000.0"),
        ("MAPLE_STRICT_MODEL", "maybe"),
        ("MAPLE_STRICT_FIELDS", "maybe"),
        ("MAPLE_TEMPERATURE", "2.1"),
        ("MAPLE_TEMPERATURE", "nan"),
        ("MAPLE_TEMPERATURE", "1e999"),
        ("MAPLE_TOP_P", "0"),
        ("MAPLE_TOP_P", "1.01"),
        ("MAPLE_TOP_K", "-2"),
        ("MAPLE_LOG_LEVEL", "loud"),
        ("MAPLE_DEVICE", "gpu"),
        ("MAPLE_TRUST_PROXY", "10.0.0.0/99"),
        ("MAPLE_RESPONSE_STORE", "postgres:responses"),
        ("MAPLE_RESPONSE_STORE", "sqlite:"),
        ("MAPLE_RESPONSE_STORE_DAYS", "0"),
        ("MAPLE_API_LEVEL", "bold"),
        ("MAPLE_BODY_TIMEOUT", "0"),
        ("MAPLE_MAX_CONNECTIONS", "9" * 5000),
    ],
)
def test_a_bad_value_is_one_line_naming_the_variable(variable: str, text: str) -> None:
    """A value that cannot be used stops the start, names the variable and what is allowed."""
    with pytest.raises(BadSetting) as caught:
        configure({variable: text}, {})
    line = str(caught.value)
    assert line.startswith(variable)
    assert "use " in line
    assert "\n" not in line
    assert len(line) < 300


def test_an_unknown_variable_names_the_nearest() -> None:
    """A typing slip is not silently ignored."""
    with pytest.raises(UnknownSetting, match="MAPLE_MAX_QUEUE_DEPTH"):
        configure({"MAPLE_MAX_QUEUE_DEPHT": "1"}, {})
    with pytest.raises(UnknownSetting, match="maple config"):
        configure({"MAPLE_ZZZZZZZZZZZZZZZZ": "1"}, {})


def test_what_kubernetes_injects_is_passed_over() -> None:
    """Service links of a service called maple are not settings."""
    links = {
        "MAPLE_PORT": "tcp://10.0.0.1:8000",
        "MAPLE_SERVICE_HOST": "10.0.0.1",
        "MAPLE_SERVICE_PORT_HTTP": "8000",
        "MAPLE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    }
    configuration = configure(links, {})
    assert configuration.settings == Settings()
    assert set(configuration.passed_over) == set(links)


@pytest.mark.parametrize("name", ["MAPLE_BASE_URL", "MAPLE_LLM_API_BASE", "MAPLE_ENDPOINT"])
def test_what_clients_read_is_passed_over(name: str) -> None:
    """A variable that names a server for clients is none of the server's; the start goes on."""
    configuration = configure({name: "http://127.0.0.1:8000/v1"}, {})
    assert configuration.settings == Settings()
    assert configuration.passed_over == {name: "clients"}


PATHS = [name for name, spec in specs().items() if spec.kind in ("path", "store", "source")]


@pytest.mark.parametrize("name", PATHS)
def test_every_path_begins_at_home(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever may be a path has its ~ spelled out, so that no folder is ever called so."""
    monkeypatch.setenv("HOME", "/home/somebody")
    scheme = "sqlite:" if name == "response_store" else ""
    settings = configure({}, {name: f"{scheme}~/x.py:Name"}).settings
    assert str(getattr(settings, name)) == f"{scheme}/home/somebody/x.py:Name"


@pytest.mark.parametrize("name", PATHS)
def test_a_home_that_is_unknown_is_one_line(name: str) -> None:
    """~ and a name that nobody here has cannot be a path."""
    scheme = "sqlite:" if name == "response_store" else ""
    with pytest.raises(BadSetting, match="no such home folder"):
        configure({}, {name: f"{scheme}~nobody-of-that-name/x"})


def test_lists_networks_paths_and_devices() -> None:
    """Lists split at commas and spaces; paths expand the home folder."""
    settings = configure(
        {
            "MAPLE_ALLOWED_ORIGINS": "https://a.example, https://b.example",
            "MAPLE_TRUST_PROXY": "127.0.0.1 10.0.0.0/8",
            "MAPLE_SESSION_DIR": "~/sessions",
            "MAPLE_DEVICE": "CUDA:1",
            "MAPLE_TEMPERATURE": ".5",
            "MAPLE_PACK_EXPERTS": "AUTO",
            "MAPLE_STRICT_FIELDS": "on",
        },
        {},
    ).settings
    assert settings.allowed_origins == ("https://a.example", "https://b.example")
    assert settings.trust_proxy == ("127.0.0.1", "10.0.0.0/8")
    assert settings.session_dir == pathlib.Path("~/sessions").expanduser()
    assert (settings.device, settings.temperature) == ("cuda:1", 0.5)
    assert (settings.pack_experts, settings.strict_fields) == ("auto", "true")


def test_the_demo_has_a_name_of_its_own() -> None:
    """--demo serves maple-sapling, unless a name was given."""
    assert configure({}, {"demo": "true"}).settings.model_id == "maple-sapling"
    assert configure({"MAPLE_MODEL_ID": "mine"}, {"demo": "true"}).settings.model_id == "mine"


def test_every_setting_has_a_variable_a_flag_and_help() -> None:
    """The table is complete: names follow from one another, keys are never flags."""
    for field in attrs.fields(Settings):
        spec = specs()[field.name]
        assert spec.help
        assert re.fullmatch(r"MAPLE_[A-Z_]+", variable_name(field.name))
        assert flag_name(field.name).startswith("--")
    assert not specs()["api_key"].flag
