"""``maple config``, ``parsers``, ``protocols`` and ``version``: what is set and what is installed, a line each."""

from __future__ import annotations

import argparse
import json
import platform
import sys

import attrs

from maple import __version__
from maple.command import Command, CommandParser, read_configuration
from maple.configure import Configuration
from maple.errors import CommandFailed
from maple.settings import Settings, Spec, flag_name, specs, variable_name


def _print(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    return 0


def _declare_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _protocols(given: argparse.Namespace) -> int:
    from maple_protocols.registry import ProtocolError, protocols  # noqa: PLC0415 -- reads every distribution's metadata

    from maple.http.routes import TAKEN  # noqa: PLC0415 -- the server's handlers

    try:
        found = protocols(TAKEN)
    except ProtocolError as error:
        raise CommandFailed(str(error)) from error
    names = max(len(each.name) for each in found)
    return _print(
        "\n".join(f"{each.name:<{names}}  {each.distribution}  {' '.join(each.patterns)}" for each in found)
    )


def _config(given: argparse.Namespace) -> int:
    configuration = read_configuration(given)
    if given.json:
        shown = {
            name: {"value": _shown(configuration.settings, name, spec), "from": configuration.sources[name]}
            for name, spec in specs().items()
        }
        return _print(
            json.dumps({**shown, "served": attrs.asdict(_served(configuration.settings))}, indent=2)
        )
    return _print("\n".join(_config_line(configuration, name, spec) for name, spec in specs().items()))


@attrs.frozen(kw_only=True)
class Served:
    """What these settings come to: the ``model``, what computes it, on which kernels, and why not on the kernels."""

    model: str
    engine: str
    kernels: str | None = None
    reason: str | None = None


def _served(settings: Settings) -> Served:
    from maple.choose_engine import choose, model_source  # noqa: PLC0415 -- the server's engines
    from maple.native.library import Unavailable, available  # noqa: PLC0415 -- numpy and the kernels: only for this

    if settings.scripted is not None:
        return Served(
            model=str(settings.scripted), engine="scripted", reason="--scripted replays recorded outputs"
        )
    kernels = available()
    choice = choose(settings, kernels)
    native = choice.path == "native" and not isinstance(kernels, Unavailable)
    return Served(
        model="maple-sapling, the small demonstration model"
        if settings.demo
        else str(model_source(settings)),
        engine="ray" if settings.engine == "ray" else choice.path,
        kernels=kernels.path if native and not isinstance(kernels, Unavailable) else None,
        reason=None if native else choice.reason or "the settings or the device ask for torch",
    )


def _config_line(configuration: Configuration, name: str, spec: Spec) -> str:
    label = variable_name(name) if spec.variable else flag_name(name)
    value = _shown(configuration.settings, name, spec)
    return f"{label:<28} {value:<32} {configuration.sources[name]}"


def _shown(settings: Settings, name: str, spec: Spec) -> str:
    """A setting's value in words; a key is never shown."""
    value = getattr(settings, name)
    if value is None:
        return "unset"
    if spec.kind == "key":
        return "set"
    if spec.kind == "span":
        return "..".join(map(str, dict.fromkeys(value)))
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) or "empty" if isinstance(value, tuple) else str(value)


CONFIG = Command(
    name="config",
    help="print every setting, its value and where it came from",
    run=_config,
    declare=_declare_json,
    settings="listed",
)
PROTOCOLS = Command(
    name="protocols", help="list the protocols that are installed, and their routes", run=_protocols
)


def _version(given: argparse.Namespace) -> int:
    if not given.json:
        return _print(f"maple {__version__}")
    from maple.native.library import Unavailable, available  # noqa: PLC0415 -- numpy and the kernels: only for this

    kernels = available()
    path = None if isinstance(kernels, Unavailable) else kernels.path
    return _print(json.dumps({"version": __version__, "python": platform.python_version(), "kernels": path}))


VERSION = Command(name="version", help="print the version", run=_version, declare=_declare_json)
