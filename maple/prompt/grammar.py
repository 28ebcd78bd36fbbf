"""Grammars for answers, by llguidance: from what a request asks for to what the engine steps.

llguidance is imported and its tokenizer made when the first request asks for a form: two seconds and a hundred
megabytes for a large vocabulary. Everything runs in the prompts' pool; the compiled grammars are kept.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from maple_plugins.parser import CallForm, ToolSpec
from maple_protocols.ask import AnswerForm, ForcedCalls

from maple.engine.constraint import Mask, OutOfGrammar, allow
from maple.errors import MapleError

WHITESPACE = "[ \\n]{0,2}"
"""Between the tokens of JSON: without a bound a model may go on with blanks for ever."""

MOST_SOURCE = 1 << 18
"""Characters of a schema, regular expression or grammar."""

MOST_SYMBOLS = 20_000
"""Symbols of a compiled grammar; the time that it takes to compile grows with their square (0.5 s for so many)."""

_KEPT = 64
_REASON_LENGTH = 300
_JSON_OPTIONS: Any = {"whitespace_pattern": WHITESPACE, "coerce_one_of": True}
_OBJECT: Mapping[str, object] = {"type": "object"}


@attrs.define(eq=False)
class GrammarRefused(MapleError):
    """A wanted form does not compile. ``reason`` is llguidance's, in one line; ``param`` is where the form stood."""

    param: str
    reason: str


@attrs.frozen
class CompiledGrammar:
    """A grammar that compiles. It goes to another process as its text, and is compiled again there."""

    folder: pathlib.Path
    eos: tuple[int, ...]
    text: str

    def start(self) -> LlMatcher:
        """A matcher at the beginning. Any thread."""
        return LlMatcher(_compiled(self.folder, self.eos, self.text).deep_copy(), self.folder, self.eos)


class LlMatcher:
    """llguidance's matcher as the engine knows one."""

    def __init__(self, matcher: Any, folder: pathlib.Path, eos: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._eos = eos
        self._words = -(-_tokenizer(folder, eos).vocab_size // 32)

    def mask(self) -> Mask:
        """The ids that may come next; only the text's ends once nothing else may."""
        mask = np.zeros(self._words, np.uint32)
        if self._matcher.is_stopped():
            allow(mask, self._eos)
        else:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():  # it then counts as stopped, as if the text were whole
            raise OutOfGrammar(_one_line(self._matcher.get_error()))
        return mask

    def accept(self, token_id: int) -> bool:
        """Whether the grammar has a place for it."""
        taken = self._matcher.is_stopped() or self._matcher.consume_token(token_id)
        return bool(taken and not self._matcher.is_error())


@attrs.frozen(kw_only=True)
class Calls:
    """Calls of these tools in a parser's form; see ``ForcedCalls``."""

    form: CallForm
    tools: tuple[ToolSpec, ...]
    forced: ForcedCalls


def compile_form(form: AnswerForm | Calls, folder: pathlib.Path, eos: tuple[int, ...]) -> CompiledGrammar:
    """The grammar of a form or of forced calls. Blocks for as long as the compiler takes, which its own limits bound.

    Raises GrammarRefused.
    """
    try:
        text = _bounded(_text(form, folder))
        _compiled(folder, eos, text)
    except (ValueError, RecursionError) as error:
        param = form.param if isinstance(form, AnswerForm) else "tools"
        raise GrammarRefused(param=param, reason=_one_line(error)) from None
    return CompiledGrammar(folder, eos, text)


def _text(form: AnswerForm | Calls, folder: pathlib.Path) -> str:
    """The grammar in llguidance's words."""
    if isinstance(form, AnswerForm):
        return _TEXTS[form.kind](form.value)
    return _lark(_calls_text(form, _tags(folder)))


@functools.lru_cache(maxsize=_KEPT)
def _compiled(folder: pathlib.Path, eos: tuple[int, ...], text: str) -> Any:
    """Llguidance's matcher at the beginning of a grammar, to be copied. Raises ValueError.

    Copies share its first mask, by far the dearest one of a large grammar: it is made here, not on the engine's thread.
    """
    from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415 -- only where a form is asked for

    limits = LLParserLimits(max_grammar_size=MOST_SYMBOLS, max_lexer_states=50_000, verbose_errors=False)
    matcher = LLMatcher(_tokenizer(folder, eos), text, log_level=0, limits=limits)
    matcher.compute_bitmask()
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


@functools.lru_cache(maxsize=2)
def _tokenizer(folder: pathlib.Path, eos: tuple[int, ...]) -> Any:
    from llguidance import LLTokenizer  # noqa: PLC0415 -- only where a form is asked for

    source = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = source["model"]["vocab"]
    for token in source["added_tokens"]:
        # llguidance spells forced text with the tokenizer, which would take a tag in it for the control token: a name
        # that nobody can write keeps the two apart.
        name = f"<|{secrets.token_hex(16)}|>"
        if token["content"] in vocabulary:
            vocabulary[name] = vocabulary.pop(token["content"])
        token["content"], token["special"] = name, True
    slices = LLTokenizer.json_slices()
    return LLTokenizer(json.dumps(source), eos_token=list(eos) or None, slices=slices)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:_REASON_LENGTH] or "it is nested too deeply"


@functools.lru_cache(maxsize=2)
def _tags(folder: pathlib.Path) -> Mapping[str, int]:
    """The control tokens of a tokenizer, by their text."""
    source = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    return {token["content"]: token["id"] for token in source["added_tokens"]}


def _calls_text(calls: Calls, tags: Mapping[str, int]) -> str:
    """The calls in Lark: in the form's texts a tag is its control token, as the model writes it."""
    form, more = calls.form, "" if calls.forced.single else " (separator call)*"
    bodies = [_call_schema(calls, tool) for tool in calls.tools]
    lines = [
        f"start: call{more}",
        f"separator: {_spelt(form.separator, tags)}",
        f"call: {_spelt(form.opener, tags)} body {_spelt(form.closer, tags)}",
        f"body: {' | '.join(f'body{number}' for number in range(len(bodies)))}",
        *(f"body{number}: %json {json.dumps(body)}" for number, body in enumerate(bodies)),
    ]
    return "\n".join(lines)


def _call_schema(calls: Calls, tool: ToolSpec) -> Mapping[str, object]:
    form, strict = calls.form, tool.name in calls.forced.strict
    arguments = tool.parameters if strict and tool.parameters is not None else _OBJECT
    return {
        "type": "object",
        "properties": {form.name: {"const": tool.name}, form.arguments: arguments},
        "required": [form.name, form.arguments],
        "additionalProperties": False,
        "x-guidance": _JSON_OPTIONS,
    }


def _spelt(text: str, tags: Mapping[str, int]) -> str:
    parts = re.split("|".join(f"({re.escape(tag)})" for tag in tags), text) if tags else [text]
    return " ".join(f"<[{tags[part]}]>" if part in tags else json.dumps(part) for part in parts if part)


def _bounded(text: str) -> str:
    if len(text) > MOST_SOURCE:
        raise ValueError(f"it is longer than {MOST_SOURCE} characters")
    return text


def _schema_text(schema: object) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415 -- only where a form is asked for

    text = _bounded(json.dumps(schema))
    return LLMatcher.grammar_from_json_schema(text, defaults=_JSON_OPTIONS)


def _choice_text(choices: Any) -> str:
    return _lark(f"start: {' | '.join(map(json.dumps, choices))}")


def _lark(text: Any) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415 -- only where a form is asked for

    return LLMatcher.grammar_from_lark(text)


def _regex(text: Any) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415 -- only where a form is asked for

    return LLMatcher.grammar_from_regex(text)


_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "object": lambda _: _schema_text(_OBJECT),
    "schema": _schema_text,
    "regex": _regex,
    "choice": _choice_text,
    "grammar": _lark,
}
