"""The words of a field table: what a value must be, said once for validation and for the API's description.

A field is ``name: Annotated[type, rule, …, Doc("…")]``. A Rule narrows its type; a Shape stands in for types
that JSON spells in more than one way. Both know their JSON Schema, so that description and check cannot drift
apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs
from typing_extensions import override

T = TypeVar("T")
Schema = dict[str, object]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Misfit(Exception):
    """A value breaks a rule: ``must`` completes the sentence that its path begins ("must be 1").

    ``path`` leads from the value being structured to the wrong one: keys and list indices, outermost first.
    """

    def __init__(self, must: str, *path: str | int) -> None:
        super().__init__(must)
        self.must = must
        self.path = path

    def under(self, key: str | int) -> Misfit:
        """The same misfit as seen from the value that holds ``key``."""
        return Misfit(self.must, key, *self.path)


class Rule:
    """Narrows a type. Its schema holds keywords that join those of the type."""

    def check(self, value: Any) -> None:
        """Raise Misfit for a value outside the rule."""
        raise NotImplementedError

    def schema(self) -> Schema:
        """The rule as keywords of JSON Schema."""
        raise NotImplementedError


class Shape:
    """Stands in for a type: ``structure`` turns JSON into the annotated type or raises Misfit.

    It sees null only where the field is required.
    """

    def structure(self, value: object) -> object:
        """``value`` as the annotated type. Raises Misfit."""
        raise NotImplementedError

    def schema(self) -> Schema:
        """What ``structure`` takes, in JSON Schema."""
        raise NotImplementedError


@attrs.frozen
class Doc:
    """What a field means, for the API's description."""

    text: str


@attrs.frozen(eq=False)  # cached readers hash annotations, and JSON has no hash
class Inert:
    """A field that has no effect, or with ``extended`` one that has none at the reference level.

    A value other than ``plain``, which asks for nothing, is reported.
    """

    plain: object = None
    extended: bool = False


@attrs.frozen(kw_only=True)
class Range(Rule):
    """A number ≥ ``least`` (or > ``above``) and ≤ ``most``."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    @override
    def check(self, value: float) -> None:
        too_low = self.least is not None and value < self.least
        too_low |= self.above is not None and value <= self.above
        if too_low or (self.most is not None and value > self.most):
            bounds = {"at least": self.least, "greater than": self.above, "at most": self.most}
            words = [f"{word} {bound}" for word, bound in bounds.items() if bound is not None]
            raise Misfit(f"must be {' and '.join(words)}")

    @override
    def schema(self) -> Schema:
        bounds = {"minimum": self.least, "exclusiveMinimum": self.above, "maximum": self.most}
        return {keyword: bound for keyword, bound in bounds.items() if bound is not None}


@attrs.frozen(kw_only=True)
class Length(Rule):
    """A string of ``least`` to ``most`` characters."""

    least: int = 0
    most: int | None = None

    @override
    def check(self, value: str) -> None:
        if len(value) < self.least:
            raise Misfit("must not be empty")
        if self.most is not None and len(value) > self.most:
            raise Misfit(f"must be at most {self.most} characters long")

    @override
    def schema(self) -> Schema:
        bounds = {"minLength": self.least or None, "maxLength": self.most}
        return {keyword: bound for keyword, bound in bounds.items() if bound is not None}


@attrs.frozen
class NotEmpty(Rule):
    """A list of one item or more."""

    @override
    def check(self, value: tuple[object, ...]) -> None:
        if not value:
            raise Misfit("must not be empty")

    @override
    def schema(self) -> Schema:
        return {"minItems": 1}


@attrs.frozen
class Pattern(Rule):
    """A string that matches ``regex`` as a whole; ``words`` say so to a person."""

    regex: str
    words: str

    @override
    def check(self, value: str) -> None:
        if not re.fullmatch(self.regex, value):
            raise Misfit(f"must be {self.words}")

    @override
    def schema(self) -> Schema:
        return {"pattern": f"^{self.regex}$"}


def text(value: object) -> str:
    """A string without lone surrogates."""
    if not isinstance(value, str):
        raise Misfit("must be a string")
    _check_surrogates(value)
    return value


def integer(value: object) -> int:
    """An int64; a bool is none, nor is 2.0."""
    if type(value) is not int:
        raise Misfit("must be an integer")
    if not INT64_MIN <= value <= INT64_MAX:
        raise Misfit("must be an integer of at most 64 bits")
    return value


def number(value: object) -> float:
    """A float or an int64, as a float."""
    if type(value) is float:
        return value
    if type(value) is not int:
        raise Misfit("must be a number")
    return float(integer(value))


def boolean(value: object) -> bool:
    """True or false, and nothing that merely reads like it."""
    if not isinstance(value, bool):
        raise Misfit("must be true or false")
    return value


def mapping(value: object) -> dict[str, object]:
    """An object, its values unchecked."""
    if not isinstance(value, dict):
        raise Misfit("must be an object")
    return value


def anything(value: object) -> object:
    """Any JSON, its numbers included; no lone surrogates at any depth."""
    _check_surrogates(json.dumps(value, ensure_ascii=False))
    return value


def free_form(value: object) -> Mapping[str, object]:
    """An object of the client's own making: any keys, any JSON in it, no lone surrogates at any depth."""
    found = mapping(value)
    anything(found)
    return found


def each(items: Iterable[object], structure: Callable[[object], T]) -> tuple[T, ...]:
    """Every item structured; a misfit is reported under its index."""
    found: list[T] = []
    for index, item in enumerate(items):
        try:
            found.append(structure(item))
        except Misfit as misfit:
            raise misfit.under(index) from None
    return tuple(found)


def one_of(words: Iterable[object]) -> str:
    """The sentence for an enumeration."""
    spelled = [word if isinstance(word, str) and word else json.dumps(word) for word in words]
    return f"must be one of {', '.join(spelled)}" if len(spelled) > 1 else f"must be {spelled[0]}"


def _check_surrogates(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit("must not hold a lone surrogate") from None
