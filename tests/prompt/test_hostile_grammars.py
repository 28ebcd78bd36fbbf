"""Forms that mean harm: each is refused in one line, or its matcher goes on for as long as it is asked."""

from __future__ import annotations

import json
import os
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from maple_protocols.ask import AnswerForm

from maple.engine.constraint import OutOfGrammar
from maple.prompt.grammar import MOST_SYMBOLS, GrammarRefused, compile_form

DEMO = pathlib.Path(__file__).parents[2] / "maple" / "demo"
EOS = (2, 0)
CASES = int(os.environ.get("STRESS_CASES", "300"))
STEPS = 12

SCHEMAS: tuple[Any, ...] = (
    {},
    {"type": "string", "maxLength": 10**9},
    {"type": "string", "minLength": 10**6, "pattern": "(a|aa|aaa){1,1000}b"},
    {"type": "array", "minItems": 10**6, "items": {"enum": [None, "a", 1]}},
    {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"items": {"$ref": "#/$defs/a"}}]}},
    },
    {
        "type": "object",
        "patternProperties": {"^a.*b": {"type": "integer", "multipleOf": 7}},
        "minProperties": 2,
    },
    {"allOf": [{"properties": {"a": {"type": "number", "minimum": -1e300}}}, {"required": ["a"]}]},
    {"oneOf": [{"format": "date-time", "type": "string"}, {"const": {"\u0000": "\ud800"}}]},
)
PATTERNS = (
    "(x+x+)+y",
    "(?:a?){500}a{500}",
    ".*a.{5000}",
    "((a{1,1000}){1,1000}){1,1000}",
    "[\\p{L}]{1,100000}",
)
GRAMMARS = (
    'start: start start | "a"',
    'start: s\ns: s s | s s s | "a" |',
    "start: a\na: b\nb: a",
    "start: <[2]> | <[999999999]>",
    "start[max_tokens=3]: /.*/",
    '%import common.INT\nstart: INT+ %json {"$ref": "file:///etc/passwd"}',
)


def mutated(draw: random.Random) -> tuple[Any, object]:
    """A form with some of its characters or parts changed; its source is still text or JSON."""
    kind = draw.choice(("schema", "regex", "grammar"))
    sources = {"schema": tuple(map(json.dumps, SCHEMAS)), "regex": PATTERNS, "grammar": GRAMMARS}[kind]
    text = list(draw.choice(sources))
    for _ in range(draw.randint(0, 4)):
        start, end = sorted(draw.choices(range(len(text) + 1), k=2))
        piece = text[start : min(end, start + 8)]
        where = draw.randrange(len(text) + 1)
        text[where : where + draw.choice((0, 0, len(piece)))] = piece * draw.choice((1, 1, 40)) or ["9"]
    if kind != "schema":
        return kind, "".join(text)
    try:
        return kind, json.loads("".join(text))
    except ValueError:
        return kind, {draw.choice(("items", "not", "anyOf", "additionalProperties")): draw.choice(SCHEMAS)}


def walk(kind: Any, value: object, draw: random.Random) -> str:
    """How a walk through a form ends: refused, ended, spent, or cut."""
    try:
        matcher = compile_form(AnswerForm(kind=kind, param="here", value=value), DEMO, EOS).start()
    except GrammarRefused as refused:
        return "refused" if refused.reason and "\n" not in refused.reason else "refused in several lines"
    try:
        for _ in range(STEPS):
            ids = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
            if ids.size == 0:
                return "spent"
            if (chosen := int(draw.choice(ids))) in EOS:
                return "ended"
            if not matcher.accept(chosen):
                return "spent"
    except OutOfGrammar:
        return "spent"
    return "cut"


def test_mutated_forms_end_nothing() -> None:
    """Thousands of them (STRESS_CASES): no other exception than the refusal, no walk that does not come back."""
    draw = random.Random(16)  # noqa: S311
    ends = [walk(*mutated(draw), draw) for _ in range(CASES)]
    assert {"refused", "cut"} <= set(ends) <= {"refused", "cut", "spent", "ended"}


def nested(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def costly() -> Iterator[tuple[str, Any]]:
    yield "schema", nested(200)
    yield "schema", nested(5000)
    yield "schema", {"properties": {f"p{number}": {} for number in range(MOST_SYMBOLS // 4)}}
    yield "regex", "(.*){1,999}" * 20
    yield "regex", "(" * 5000 + "a" + ")" * 5000
    yield "grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000


@pytest.mark.parametrize("case", range(6))
def test_what_costs_too_much_is_refused(case: int) -> None:
    """By counts of the compiler's, not by the clock."""
    kind, value = list(costly())[case]
    assert walk(kind, value, random.Random(1)) == "refused"  # noqa: S311


def test_a_grammar_that_is_spent_is_never_taken_for_whole() -> None:
    """A matcher that has used up its limits says so: it does not let the text end as if it fitted."""
    form = AnswerForm(kind="regex", param="here", value="(?:a?){500}a{500}")
    for _ in range(2):
        try:
            matcher = compile_form(form, DEMO, EOS).start()
            ids = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
        except (GrammarRefused, OutOfGrammar):
            continue
        assert not set(EOS) & set(ids.tolist())
        assert not matcher.accept(int(ids[0]))
        with pytest.raises(OutOfGrammar):
            matcher.mask()
