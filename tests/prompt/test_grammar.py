"""Forms of answers, compiled for the embedded model's tokenizer and stepped without a model."""

from __future__ import annotations

import contextlib
import json
import pathlib
import pickle
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
from maple_protocols.ask import AnswerForm

from maple.engine.constraint import Constraint, OutOfGrammar
from maple.engine.detokenize import TokenBytes
from maple.prompt.grammar import MOST_SOURCE, CompiledGrammar, GrammarRefused, compile_form

DEMO = pathlib.Path(__file__).parents[2] / "maple" / "demo"
EOS = (2, 0)


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))


def compiled(kind: Any, value: object = None) -> CompiledGrammar:
    return compile_form(AnswerForm(kind=kind, param="here", value=value), DEMO, EOS)


def allowed(mask: Any) -> list[int]:
    return [int(one) for one in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


def wander(grammar: CompiledGrammar, tokens: TokenBytes, seed: int, most: int = 400) -> str | None:
    """Some text of a grammar, an allowed id after the other; None if it does not end in time."""
    draw, matcher, found = random.Random(seed), grammar.start(), b""  # noqa: S311
    for _ in range(most):
        ids = allowed(matcher.mask())
        chosen = next((one for one in EOS if one in ids), None) or draw.choice(ids)
        assert matcher.accept(chosen)
        if chosen in EOS:
            return found.decode()
        found += tokens[chosen]
    return None


SCHEMAS = [
    {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
    },
    {
        "type": "array",
        "items": {"type": "integer", "minimum": -5, "maximum": 40},
        "minItems": 2,
        "maxItems": 4,
    },
    {"oneOf": [{"type": "null"}, {"type": "string", "maxLength": 5}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"type": "null"}}}}},
    {"type": "string", "format": "date"},
    {"const": {"deep": [1, 2, {"x": None}]}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_whatever_a_grammar_allows_is_valid(schema: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> None:
    """Any way through it that ends parses and fits the schema."""
    grammar, tokens = compiled("schema", schema), TokenBytes(tokenizer)
    texts = [text for seed in range(10) if (text := wander(grammar, tokens, seed)) is not None]
    assert texts
    for text in texts:
        jsonschema.validate(json.loads(text), schema)


BOTH = {"oneOf": [{"type": "integer"}, {"minimum": 2}]}
STEP = {
    "properties": {"n": {"type": "integer", "multipleOf": 3}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "instance", "fits"),
    [
        (BOTH, 1, True),
        (BOTH, 2.5, True),
        (BOTH, 3, True),  # by both: read as anyOf, as the docs say
        (BOTH, 1.5, False),
        (STEP, {"n": 9}, True),
        (STEP, {"n": 10}, False),
        (STEP, {}, False),
        (STEP, {"n": 9, "m": 1}, False),
        ({"pattern": "^a+$", "maxLength": 3, "type": "string"}, "aaa", True),
        ({"pattern": "^a+$", "maxLength": 3, "type": "string"}, "aaaa", False),
    ],
)
def test_what_is_valid_is_allowed_and_nothing_else(
    schema: dict[str, Any], instance: object, fits: bool, tokenizer: tokenizers.Tokenizer
) -> None:
    """An instance, written out, is taken to its end just where it fits."""
    matcher = compiled("schema", schema).start()
    ids = tokenizer.encode(json.dumps(instance), add_special_tokens=False).ids
    taken = all(matcher.accept(one) for one in ids) and bool(set(EOS) & set(allowed(matcher.mask())))
    assert taken == fits


def test_the_other_kinds(tokenizer: tokenizers.Tokenizer) -> None:
    """An object, a regular expression, a choice, a grammar."""
    tokens = TokenBytes(tokenizer)
    assert wander(compiled("regex", "[a-c]{3}"), tokens, 1, 8) is not None
    assert wander(compiled("choice", ("yes", 'n"o')), tokens, 1) in ("yes", 'n"o')
    assert wander(compiled("grammar", 'start: "x" "y"'), tokens, 1) == "xy"
    assert allowed(compiled("object").start().mask())


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("schema", {"not": {}}),
        ("schema", {"type": "nonsense"}),
        ("regex", "(a+"),
        ("grammar", "start: missing"),
        ("grammar", "x" * (MOST_SOURCE + 1)),
        ("schema", {"enum": ["x" * MOST_SOURCE]}),
    ],
)
def test_what_does_not_compile_is_one_line(kind: Any, value: object) -> None:
    """Blamed on the field that asked for it, in bounded time."""
    with pytest.raises(GrammarRefused) as caught:
        compiled(kind, value)
    assert caught.value.param == "here"
    assert 0 < len(caught.value.reason) <= 300
    assert "\n" not in caught.value.reason


def test_a_deep_schema_is_refused_or_served(tokenizer: tokenizers.Tokenizer) -> None:
    """Two hundred levels end no thread."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    with contextlib.suppress(GrammarRefused):
        matcher = compiled("schema", schema).start()
        assert matcher.accept(tokenizer.encode("{", add_special_tokens=False).ids[0])


def test_a_tag_in_a_text_is_spelt_and_never_the_control_token(tokenizer: tokenizers.Tokenizer) -> None:
    """Though the tokenizer by itself would take it for one."""
    matcher, found = compiled("schema", {"const": "<tool_call>"}).start(), []
    while not set(ids := allowed(matcher.mask())) & set(EOS):
        found.append(ids[-1])
        assert matcher.accept(ids[-1])
    assert tokenizer.token_to_id("<tool_call>") not in found
    assert tokenizer.decode(found) == '"<tool_call>"'


def test_a_grammar_goes_to_another_process() -> None:
    """As its text: what a cluster's replica starts is the same."""
    grammar = compiled("choice", ("a", "b"))
    again = pickle.loads(pickle.dumps(grammar))  # noqa: S301 -- what this test pickled
    assert allowed(again.start().mask()) == allowed(grammar.start().mask())


class TestConstraint:
    """Where a grammar begins in an answer."""

    def constraint(self, tokenizer: tokenizers.Tokenizer, behind: str | None) -> Constraint:
        newlines = set(self.ids(tokenizer, "\n"))
        return Constraint(compiled("choice", ("ab",)), behind, TokenBytes(tokenizer), lambda: newlines)

    def ids(self, tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    @pytest.mark.parametrize("closer", ["</think>", "<|im_start|>"])
    def test_thinking_is_free(self, tokenizer: tokenizers.Tokenizer, closer: str) -> None:
        """Until the closer's text is complete; then a gap of newlines may come, once, and then the grammar."""
        constraint = self.constraint(tokenizer, closer)
        for token_id in self.ids(tokenizer, f"17 = 4{closer}"):
            assert constraint.mask() is None
            constraint.accept(token_id)
        (newline,) = self.ids(tokenizer, "\n")
        first = constraint.mask()
        assert first is not None
        assert newline in allowed(first)
        constraint.accept(newline)
        second = constraint.mask()
        assert second is not None
        assert newline not in allowed(second)

    def test_without_thinking_it_begins_at_once(self, tokenizer: tokenizers.Tokenizer) -> None:
        constraint = self.constraint(tokenizer, None)
        for token_id in self.ids(tokenizer, "ab"):
            constraint.accept(token_id)
        mask = constraint.mask()
        assert mask is not None
        assert sorted(allowed(mask)) == sorted(EOS)

    def test_an_id_that_has_no_place_is_an_error(self, tokenizer: tokenizers.Tokenizer) -> None:
        constraint = self.constraint(tokenizer, None)
        with pytest.raises(OutOfGrammar):
            constraint.accept(self.ids(tokenizer, "z")[0])
