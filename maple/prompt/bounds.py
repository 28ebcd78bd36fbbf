"""What a template's operators, filters and methods may build: weighed by their arguments, before they build it."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import jinja2

LARGEST_VALUE = 1 << 26
"""Characters or items that one expression may build."""
LARGEST_NUMBER = 1 << 20
"""The widest field, deepest indent or longest row that a filter or method may be asked for."""
LARGEST_BITS = 1 << 16
"""Of a whole number; Python works longer on each further one."""
MOST_PARTS = 1 << 20
"""Values within one another that may be spelled out at once: lists that hold a list twice double at each level."""

_WIDE_FIELD = re.compile(r"\*|[0-9]{7,}|\{[^{}]*:[^{}]*\{")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "indent"})
_SPELLING = frozenset(
    {"string", "tojson", "pprint", "join", "format", "replace", "sum", "e", "escape", "forceescape"}
)


class BoundError(jinja2.TemplateError):
    """The template takes too long or builds too much."""


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raise BoundError where ``left operator right`` would be huge."""
    if isinstance(left, int) and isinstance(right, int):
        bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * abs(right)}
        _bound(bits.get(operator, 0), LARGEST_BITS, "computes a number")
    elif operator == "*":
        _bound(_extent(left) * _extent(right), LARGEST_VALUE, "multiplies a text or list")
    elif operator == "+":
        _bound(_extent(left) + _extent(right), LARGEST_VALUE, "builds a text or list")
    elif operator == "%" and isinstance(left, str):
        check_format(left, right if isinstance(right, tuple) else (right,))


def check_format(text: str, values: Iterable[object]) -> None:
    """The same for ``text`` filled with ``values``, whose fields may have widths."""
    if _WIDE_FIELD.search(text):
        raise BoundError("it pads a text beyond all use")
    longest = max((weigh(value) for value in values), default=0)
    _bound(len(text) + (text.count("{") + text.count("%")) * longest, LARGEST_VALUE, "fills in a text")


def check_method(name: str, text: str, arguments: tuple[Any, ...]) -> None:
    """The same for a method of a text. ``join`` has a function of its own."""
    if name == "translate":
        tables = [value for table in arguments if isinstance(table, Mapping) for value in table.values()]
        widest = max((len(value) for value in tables if isinstance(value, str)), default=1)
        _bound(len(text) * max(widest, 64), LARGEST_VALUE, "translates a text")
    if name == "replace" and len(arguments) > 1:
        _check_replace(text, *arguments[:2])
    if name in _PADDING:
        _check_numbers(arguments)
        times = text.count("\t" if name == "expandtabs" else "\n") + 1
        _bound(len(text) + times * max(map(_extent, arguments), default=1), LARGEST_VALUE, "pads a text")


def bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that weighs what it is given first."""
    extra = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        value, *others = args[extra:] or (None,)
        arguments = (*others, *kwargs.values())
        _check_numbers(arguments)
        if name in _SPELLING and not isinstance(value, str):
            value, args = _settled(value, args, extra)
            weigh(value)
        if name == "join":
            _check_join(cast("Iterable[object]", value), str(arguments[0]) if arguments else "")
        elif name == "format":
            check_format(str(value), arguments)
        elif isinstance(value, str):
            check_method(name, value, arguments)
        return function(*args, **kwargs)

    return bounded


def join(separator: str, parts: Iterable[Any]) -> str:
    """``separator.join(parts)``, unless that would be huge."""
    found = list(itertools.islice(parts, MOST_PARTS + 1))
    _check_join(found, separator)
    return separator.join(found)


def weigh(value: object) -> int:
    """About how long the text of ``value`` is. Raises BoundError for too much, before it has seen it all."""
    total, parts = 0, 0
    waiting = [value]
    while waiting:
        part = waiting.pop()
        parts += 1
        total += _extent(part) if isinstance(part, str) else 16
        _bound(total, LARGEST_VALUE, "spells out a value")
        _bound(parts, MOST_PARTS, "spells out a value")
        if isinstance(part, Mapping):
            waiting.extend(part.keys())
            waiting.extend(part.values())
        elif isinstance(part, list | tuple | set | frozenset):
            waiting.extend(part)
    return total


def _settled(value: Any, args: tuple[Any, ...], extra: int) -> tuple[Any, tuple[Any, ...]]:
    """Generators, such as ``map`` makes, as lists: weighing would use them up."""
    if not hasattr(value, "__next__"):
        return value, args
    found = list(itertools.islice(value, MOST_PARTS + 1))
    return found, (*args[:extra], found, *args[extra + 1 :])


def _check_join(parts: Iterable[object], separator: str) -> None:
    listed = list(parts) if not isinstance(parts, list | tuple | str) else parts
    _bound(len(listed), LARGEST_VALUE, "joins texts")
    _bound(weigh(list(listed)) + len(listed) * len(separator), LARGEST_VALUE, "joins texts")


def _check_replace(text: str, old: Any, new: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        _bound(len(text) + (text.count(old)) * len(new), LARGEST_VALUE, "replaces texts")


def _check_numbers(arguments: Iterable[Any]) -> None:
    for argument in arguments:
        if isinstance(argument, int):
            _bound(abs(argument), LARGEST_NUMBER, "pads a text or list")


def _extent(value: object) -> int:
    if isinstance(value, str | list | tuple):
        return max(1, len(value))
    return abs(value) if isinstance(value, int) else 1


def _bound(size: int, most: int, deed: str) -> None:
    if size > most:
        raise BoundError(f"it {deed} beyond all use")
