"""Parsers by name or by file. Only the chosen one is imported; built-in ones come through the same door."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pathlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Literal, cast

import attrs

from maple_plugins.errors import (
    AmbiguousParser,
    NotAParser,
    ParserClassMissing,
    ParserFileMissing,
    ParserImportError,
    UnknownParser,
)
from maple_plugins.parser import ParserContext, ReasoningParser, ToolParser

ParserKind = Literal["reasoning", "tool"]

GROUPS: Mapping[ParserKind, str] = {"reasoning": "maple.reasoning_parsers", "tool": "maple.tool_parsers"}
"""Entry point groups; a distribution that declares ``name = "module:Class"`` in one offers a parser."""

_METHODS: Mapping[ParserKind, tuple[str, ...]] = {
    "reasoning": ("feed", "close", "prompt_ends_inside"),
    "tool": ("feed", "close"),
}


@attrs.frozen(kw_only=True)
class ParserInfo:
    """An installed parser; ``target`` is ``module:Class``."""

    kind: ParserKind
    name: str
    distribution: str
    target: str


def reasoning_parser(spec: str) -> type[ReasoningParser]:
    """The reasoning parser called ``spec``, or the class of ``./file.py:Class``. Raises ParserError."""
    return cast("type[ReasoningParser]", _resolve("reasoning", spec))


def tool_parser(spec: str) -> type[ToolParser]:
    """The tool parser called ``spec``, or the class of ``./file.py:Class``. Raises ParserError."""
    return cast("type[ToolParser]", _resolve("tool", spec))


def installed() -> tuple[ParserInfo, ...]:
    """Every parser that some distribution offers, by kind, name and distribution. Imports none of them."""
    found = [
        ParserInfo(kind=kind, name=point.name, distribution=_distribution(point), target=point.value)
        for kind, group in GROUPS.items()
        for point in importlib.metadata.entry_points(group=group)
    ]
    return tuple(sorted(found, key=lambda info: (info.kind, info.name, info.distribution)))


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    return "unknown" if point.dist is None else point.dist.name


def _resolve(kind: ParserKind, spec: str) -> type:
    target = spec if ":" in spec else _installed_target(kind, spec)
    place, _, qualname = target.rpartition(":")
    load = functools.partial(_load_file if ":" in spec else importlib.import_module, place)
    return _checked(kind, target, _attribute(target, _imported(target, load), qualname))


def _installed_target(kind: ParserKind, name: str) -> str:
    infos = [info for info in installed() if info.kind == kind]
    matching = {info.distribution: info.target for info in infos if info.name == name}
    if not matching:
        known = tuple(dict.fromkeys(info.name for info in infos))
        near = difflib.get_close_matches(name, known, n=1)
        raise UnknownParser(kind, name, known, near[0] if near else None)
    if len(matching) > 1:
        raise AmbiguousParser(kind, name, tuple(matching))
    return next(iter(matching.values()))


def _imported(target: str, load: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load()
    except ParserFileMissing:
        raise
    except Exception as error:  # a plugin may raise anything, and its own traceback is what its author needs
        raise ParserImportError(target) from error


def _load_file(place: str) -> ModuleType:
    """Import a file under a name that nothing else has: it shadows no module, and sys.path stays as it is.

    The same file is loaded once a process.
    """
    path = pathlib.Path(place).absolute()
    if not path.is_file():
        raise ParserFileMissing(place)
    name = f"_maple_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _attribute(target: str, module: ModuleType, qualname: str) -> object:
    try:
        return functools.reduce(getattr, qualname.split("."), cast("object", module))
    except AttributeError as error:
        raise ParserClassMissing(target) from error


def _checked(kind: ParserKind, target: str, found: object) -> type:
    if not isinstance(found, type):
        raise NotAParser(kind, target, "it is not a class")
    missing = [name for name in _METHODS[kind] if not callable(getattr(found, name, None))]
    if missing:
        raise NotAParser(kind, target, f"it has no method {', '.join(missing)}")
    if kind == "reasoning" and not hasattr(found, "reasoning_end"):
        raise NotAParser(kind, target, "it has no property reasoning_end")
    markers = getattr(found, "markers", None)
    if not isinstance(markers, tuple) or not all(isinstance(marker, str) and marker for marker in markers):
        raise NotAParser(kind, target, "its markers are no tuple of non-empty strings")
    if not _takes_context(found):
        raise NotAParser(kind, target, "it cannot be made from one ParserContext")
    return found


def _takes_context(found: type) -> bool:
    if inspect.isabstract(found):
        return False
    try:
        inspect.signature(found).bind(ParserContext())
    except TypeError:
        return False
    return True
