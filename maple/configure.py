"""Reading settings from variables and flags: strict, one line per mistake, with the way out."""

from __future__ import annotations

import difflib
import ipaddress
import math
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import platformdirs

from maple.errors import MapleError
from maple.settings import Settings, Source, Spec, flag_name, specs, variable_name

TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})
BOOL_WORDS = "1/true/yes/on or 0/false/no/off"
DEMO_MODEL_ID = "maple-sapling"


@attrs.define(eq=False)
class BadSetting(MapleError):
    """A variable or flag has a value that cannot be used. ``allowed`` says which can."""

    name: str
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.name}={self.value[:64]!r} is not valid: {self.allowed}"


@attrs.define(eq=False)
class UnknownSetting(MapleError):
    """A ``MAPLE_`` variable that is no setting; ``nearest`` is the likeliest one meant, if any is near."""

    name: str
    nearest: str | None

    def __str__(self) -> str:
        hint = f"did you mean {self.nearest}?" if self.nearest else "`maple config` lists the known ones"
        return f"{self.name} is not a setting: {hint}"


@attrs.frozen(kw_only=True)
class Configuration:
    """The settings, where each came from, and whose the variables are that were passed over (a warning to log)."""

    settings: Settings
    sources: Mapping[str, Source]
    passed_over: Mapping[str, str] = attrs.field(factory=dict)


def configure(environ: Mapping[str, str], flags: Mapping[str, str]) -> Configuration:
    """Merge defaults, variables and flags; flags win. Raises BadSetting or UnknownSetting.

    ``flags`` maps setting names to the text given. A blank value means the default, except for a key: a blank
    key would silently open the server.
    """
    variables, passed_over = _variables(environ)
    values: dict[str, Any] = {}
    sources: dict[str, Source] = dict.fromkeys(specs(), "default")
    for source, texts in (("environment", variables), ("flag", flags)):
        for name, text in texts.items():
            label = variable_name(name) if source == "environment" else flag_name(name)
            if text.strip() or specs()[name].kind in ("key", "path_or_off"):
                values[name] = _read(label, text, specs()[name])
                sources[name] = source  # type: ignore[assignment]  # the loop's literal pair
    if values.get("demo"):
        values.setdefault("model_id", DEMO_MODEL_ID)
    return Configuration(settings=Settings(**values), sources=sources, passed_over=passed_over)


def _variables(environ: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    known = {variable_name(name): name for name, spec in specs().items() if spec.variable}
    found: dict[str, str] = {}
    passed_over: dict[str, str] = {}
    for variable, text in environ.items():
        if not variable.startswith("MAPLE_"):
            continue
        if owner := _other_owner(variable, text):
            passed_over[variable] = owner
        elif variable in known:
            found[known[variable]] = text
        else:
            near = difflib.get_close_matches(variable, known, n=1, cutoff=0.6)
            raise UnknownSetting(variable, near[0] if near else None)
    return found, passed_over


def _other_owner(variable: str, text: str) -> str:
    """Who reads such a variable if not a server; empty where nobody is known to."""
    if variable == "MAPLE_PORT":
        return "Kubernetes" if text.startswith("tcp://") else ""
    if variable.startswith(("MAPLE_SERVICE_", "MAPLE_PORT_")):  # beside a service called maple
        return "Kubernetes"
    return "clients" if variable.endswith(("_BASE_URL", "_API_BASE", "_ENDPOINT")) else ""


def cache_folder(settings: Settings) -> pathlib.Path | None:
    """Where packed weights are kept: the settings' folder, or the user's own for caches; None without a home."""
    if settings.cache_dir is not None:
        return settings.cache_dir
    try:
        return platformdirs.user_cache_path("maple")
    except RuntimeError:  # HOME is unset, and nobody of this uid is known
        return None


def prefix_folder(settings: Settings) -> pathlib.Path | None:
    """Where prefixes are kept on disk, if they are."""
    if settings.prefix_dir is not None:
        return None if settings.prefix_dir == "off" else settings.prefix_dir
    cache = cache_folder(settings) if settings.api_level == "extended" else None
    return None if cache is None else cache / "prefixes"


def _read(label: str, text: str, spec: Spec) -> Any:
    try:
        return READERS[spec.kind](text.strip(), spec)
    except ValueError as error:
        raise BadSetting(label, text, str(error)) from None


def _text(text: str, spec: Spec) -> str:
    return text


def _key(text: str, spec: Spec) -> str:
    if not text:
        raise ValueError("a blank key would open the server; unset it to run without one")
    return text


def _at_home(text: str, spec: Spec) -> str:
    """The text with a leading ``~`` spelled out, for what may be a path."""
    if not text.startswith("~"):
        return text
    try:
        return str(pathlib.Path(text).expanduser())
    except RuntimeError:
        raise ValueError("use a path without ~, since no such home folder is known") from None


def _path(text: str, spec: Spec) -> pathlib.Path:
    return pathlib.Path(_at_home(text, spec))


def _choice(text: str, spec: Spec) -> str:
    word = text.lower()
    if word not in spec.choices:
        near = difflib.get_close_matches(word, spec.choices, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"use {' or '.join(spec.choices)}{hint}")
    return word


def _bool(text: str, spec: Spec) -> bool:
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(f"use {BOOL_WORDS}")


def _auto_bool(text: str, spec: Spec) -> str:
    if text.lower() == "auto":
        return "auto"
    try:
        return "true" if _bool(text, spec) else "false"
    except ValueError:
        raise ValueError(f"use auto, {BOOL_WORDS}") from None


def _integer(text: str, spec: Spec) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError(f"use an integer{_range(spec)}")
    return int(_within(int(text), spec, "an integer"))


def _auto_integer(text: str, spec: Spec) -> int | str:
    if text.lower() == "auto":
        return "auto"
    try:
        return _integer(text, spec)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from None


def _number(text: str, spec: Spec) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", text):
        raise ValueError(f"use a number{_range(spec)}")
    return _within(float(text), spec, "a number")


def _fraction(text: str, spec: Spec) -> float:
    value = _number(text, spec)
    if value == 0:
        raise ValueError("use a number above 0, at most 1")
    return value


def _within(value: float, spec: Spec, noun: str) -> float:
    if not math.isfinite(value) or not spec.low <= value <= spec.high:
        raise ValueError(f"use {noun}{_range(spec)}")
    return value


def _range(spec: Spec) -> str:
    low, high = f"{spec.low:g}", f"{spec.high:g}"
    if math.isinf(spec.high):
        return "" if math.isinf(spec.low) else f" of at least {low}"
    return f" of at most {high}" if math.isinf(spec.low) else f" from {low} to {high}"


def _list(text: str, spec: Spec) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[,\s]+", text) if word)


def _networks(text: str, spec: Spec) -> tuple[str, ...]:
    words = _list(text, spec)
    for word in words:
        try:
            ipaddress.ip_network(word, strict=False)
        except ValueError:
            raise ValueError("use addresses or CIDRs, such as 127.0.0.1, 10.0.0.0/8") from None
    return words


def _device(text: str, spec: Spec) -> str:
    word = text.lower()
    if not re.fullmatch(r"auto|cpu|mps|cuda(:[0-9]{1,3})?", word):
        raise ValueError("use auto, cpu, cuda, cuda:N or mps")
    return word


def _store(text: str, spec: Spec) -> str:
    scheme, _, file = text.partition(":")
    if scheme != "sqlite" or not file:
        raise ValueError("use sqlite:FILE")
    return f"{scheme}:{_at_home(file, spec)}"


def _efforts(text: str, spec: Spec) -> tuple[str, ...]:
    words = _list(text, spec)
    if not all(re.fullmatch(r"[a-z]+=[1-9][0-9]{0,8}", word) for word in words):
        raise ValueError("use words with their tokens, such as low=512,medium=2048")
    return words


def _span(text: str, spec: Spec) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?", text)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not spec.low <= least <= most <= spec.high:
        raise ValueError(f"use a number{_range(spec)}, or two of them as in 1..4")
    return least, most


READERS: Mapping[str, Callable[[str, Spec], Any]] = {
    "text": _text,
    "source": _at_home,
    "key": _key,
    "path": _path,
    "path_or_off": lambda text, spec: _path(text, spec) if text else "off",
    "choice": _choice,
    "bool": _bool,
    "auto_bool": _auto_bool,
    "integer": _integer,
    "auto_integer": _auto_integer,
    "number": _number,
    "fraction": _fraction,
    "list": _list,
    "networks": _networks,
    "device": _device,
    "store": _store,
    "span": _span,
    "efforts": _efforts,
}
