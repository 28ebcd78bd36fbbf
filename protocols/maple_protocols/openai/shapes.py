"""Shapes and rules of the shared fields: values that JSON spells in more than one way."""

from __future__ import annotations

import re
from typing import Literal

import attrs
from typing_extensions import override

from maple_protocols.reading import is_extended, unserved
from maple_protocols.rules import (
    Misfit,
    Range,
    Rule,
    Schema,
    Shape,
    anything,
    each,
    integer,
    mapping,
    number,
    one_of,
    text,
)

NO_LIMIT = -1
"""Clients' word for "as many tokens as there is room for"."""

MAX_STOPS = 16

MAX_CHOICES = 8

MAX_STOP_IDS = 64

MAX_BIASES = 1024

MAX_STOP_LENGTH = 1000


@attrs.frozen
class Stops(Shape):
    """A string or a list of them. Every refusal is blamed on the field itself, never on an index."""

    @override
    def structure(self, value: object) -> tuple[str, ...]:
        if isinstance(value, list) and len(value) > MAX_STOPS:
            raise Misfit(f"must hold at most {MAX_STOPS} strings")
        try:
            return each(value if isinstance(value, list) else [value], self._one)
        except Misfit as misfit:
            raise Misfit(misfit.must) from None

    @staticmethod
    def _one(value: object) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= MAX_STOP_LENGTH:
            raise Misfit(f"must be a string or a list of strings, each of 1 to {MAX_STOP_LENGTH} characters")
        return text(value)

    @override
    def schema(self) -> Schema:
        one: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
        return {"anyOf": [one, {"type": "array", "items": one, "maxItems": MAX_STOPS}]}


@attrs.frozen
class TokenLimit(Rule):
    """At least one token; at the extended level -1 leaves the limit to the server, and ``least`` may be 0."""

    least: int = 1

    @override
    def check(self, value: int) -> None:
        if value == NO_LIMIT and not is_extended():
            raise unserved("must be at least 1")
        least = self.least if is_extended() else 1
        if value < least and value != NO_LIMIT:
            raise Misfit("must be at least 1")

    @override
    def schema(self) -> Schema:
        return {"minimum": self.least if is_extended() else 1}


@attrs.frozen
class ServedRange(Range):
    """A range that holds at the extended level; at the reference level the field takes any number, in vain."""

    @override
    def check(self, value: float) -> None:
        if is_extended():
            super().check(value)

    @override
    def schema(self) -> Schema:
        return super().schema() if is_extended() else {}


@attrs.frozen
class LogitBias(Shape):
    """An object of ids to numbers from -100 to 100; at the reference level anything, in vain."""

    @override
    def structure(self, value: object) -> tuple[tuple[int, float], ...]:
        if not is_extended():
            anything(value)
            return ()
        given = mapping(value)
        if len(given) > MAX_BIASES:
            raise Misfit(f"must hold at most {MAX_BIASES} ids")
        return tuple((self._id(key), self._one(key, bias)) for key, bias in given.items())

    @staticmethod
    def _id(key: str) -> int:
        if not re.fullmatch(r"0|[1-9][0-9]{0,8}", key):
            raise Misfit("must be a token id in decimal", key)
        return int(key)

    @staticmethod
    def _one(key: str, value: object) -> float:
        try:
            bias = number(value)
            Range(least=-100, most=100).check(bias)
        except Misfit as misfit:
            raise misfit.under(key) from None
        return bias

    @override
    def schema(self) -> Schema:
        if not is_extended():
            return {}
        bias: Schema = {"type": "number", "minimum": -100, "maximum": 100}
        return {"type": "object", "additionalProperties": bias, "maxProperties": MAX_BIASES}


@attrs.frozen
class StopIds(Shape):
    """A list of token ids."""

    @override
    def structure(self, value: object) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise Misfit("must be a list")
        if len(value) > MAX_STOP_IDS:
            raise Misfit(f"must hold at most {MAX_STOP_IDS} token ids")
        return each(value, self._one)

    @staticmethod
    def _one(value: object) -> int:
        token = integer(value)
        if token < 0:
            raise Misfit("must be a token id")
        return token

    @override
    def schema(self) -> Schema:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": MAX_STOP_IDS}


@attrs.frozen
class ServedSwitch(Rule):
    """true at the extended level alone."""

    @override
    def check(self, value: bool) -> None:
        if value and not is_extended():
            raise unserved("must be false")

    @override
    def schema(self) -> Schema:
        return {} if is_extended() else {"enum": [False]}


@attrs.frozen
class ChoiceCount(Shape):
    """How many answers are wanted: one at the reference level, in its own words."""

    @override
    def structure(self, value: object) -> int:
        if not is_extended() and not (type(value) is int and value == 1):
            raise Misfit("must be 1")
        found = integer(value)
        Range(least=1, most=MAX_CHOICES).check(found)
        return found

    @override
    def schema(self) -> Schema:
        return {"type": "integer", "minimum": 1, "maximum": MAX_CHOICES} if is_extended() else {"enum": [1]}


@attrs.frozen(eq=False)  # 0 and False are equal, and the caches of annotations would take one for the other
class LogprobCount(Shape):
    """How many of the likeliest tokens to tell of, up to ``most``; ``none``, which is None, asks for nothing.

    Another value is served at the extended level, where ``served`` says that it is.
    """

    none: Literal[False, 0]
    most: int
    served: bool = True

    @override
    def structure(self, value: object) -> int | None:
        if type(value) is type(self.none) and value == self.none:
            return None
        if not self.served:
            raise Misfit(f"{one_of((self.none,))}: log probabilities are not given")
        if not is_extended():
            raise unserved(one_of((self.none,)))
        found = integer(value)
        Range(least=0, most=self.most).check(found)
        return found

    @override
    def schema(self) -> Schema:
        count: Schema = {"type": "integer", "minimum": 0, "maximum": self.most}
        if not (self.served and is_extended()):
            return {"enum": [self.none]}
        return (
            count if self.none == 0 and self.none is not False else {"anyOf": [count, {"enum": [self.none]}]}
        )
