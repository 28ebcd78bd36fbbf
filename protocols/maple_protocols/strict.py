"""Strict structuring of JSON into attrs classes: no coercion, null is absent, the first wrong field is named.

The field tables are the classes themselves (see ``rules``). Fields are read in the order in which their class
lists them, whatever the order in the body, so that one body always gets one and the same refusal.
"""

from __future__ import annotations

import functools
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn

from maple_protocols.errors import ECHO_LIMIT, InvalidField
from maple_protocols.reading import is_extended, safe_name
from maple_protocols.rules import (
    Inert,
    Misfit,
    Rule,
    Shape,
    anything,
    boolean,
    each,
    free_form,
    integer,
    mapping,
    number,
    one_of,
    text,
)

T = TypeVar("T")
Read = Callable[[object], Any]
Check = Callable[[Any, Mapping[str, Any]], None]
"""Looks at a field's value and at those structured before it; raises Misfit, or a RequestError of its own."""


def structure(
    cls: type[T],
    body: Mapping[str, object],
    *,
    refuse_unknown: bool,
    code: str | None = None,
    checks: Mapping[str, Check] | None = None,
) -> T:
    """``body`` as a ``cls``. Raises InvalidField with ``code`` for the first wrong field.

    ``checks`` hold, by field name, what a field's type cannot say. They count in the field's turn, where it is
    present. Unknown keys are looked at last, only if ``refuse_unknown``, and are invalid_parameter.
    """
    try:
        found: T = _structured(cls, body, checks or {})
    except Misfit as misfit:
        raise _refusal(misfit, code) from None
    if refuse_unknown:
        _check_known(cls, body)
    return found


def _structured(cls: Any, body: Mapping[str, object], checks: Mapping[str, Check]) -> Any:
    def present(fields: Iterable[Field]) -> Iterator[Field]:
        return (field for field in fields if body.get(field.name) is not None)

    try:
        found = read(cls, body)
    except Misfit as misfit:
        wrong = misfit.path[0]
        before = itertools.takewhile(lambda field: field.name != wrong, table(cls))
        _run(checks, {field.name: read(field.annotation, body[field.name]) for field in present(before)})
        raise
    _run(checks, {field.name: getattr(found, field.name) for field in present(table(cls))})
    return found


def _run(checks: Mapping[str, Check], values: Mapping[str, Any]) -> None:
    for name in filter(checks.__contains__, values):
        try:
            checks[name](values[name], values)
        except Misfit as misfit:
            raise misfit.under(name) from None


def _check_known(cls: type, body: Mapping[str, object]) -> None:
    known = {field.name for field in table(cls)}
    for key, value in body.items():
        if key not in known and value is not None:
            raise _refusal(Misfit("is not a known field", key), "invalid_parameter")


def ignored(cls: type, body: Mapping[str, object]) -> tuple[str, ...]:
    """The top-level fields of ``body`` that have no effect: unknown ones, and Inert ones that ask for
    something.
    """
    inert = {
        field.name: None if field.inert and field.inert.extended and is_extended() else field.inert
        for field in table(cls)
    }
    return tuple(
        safe_name(key)
        for key, value in body.items()
        if value is not None and (note := inert.get(key, Inert())) is not None and value != note.plain
    )


def read(annotation: Any, value: object) -> Any:
    """One value as its annotation wants it. Raises Misfit."""
    return _reader(annotation)(value)


def path_text(path: tuple[str | int, ...]) -> str:
    """``messages[1].content``: at most ECHO_LIMIT characters, safe to encode."""
    joined = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return joined.removeprefix(".")[:ECHO_LIMIT].encode(errors="replace").decode()


@attrs.frozen
class Field:
    """One line of a field table. ``annotation`` keeps its rules and docs."""

    name: str
    annotation: Any
    required: bool

    @property
    def inert(self) -> Inert | None:
        """The note that says so, where the field has no effect."""
        return next((note for note in get_args(self.annotation) if isinstance(note, Inert)), None)


@functools.cache
def table(cls: Any) -> tuple[Field, ...]:
    """The field table of an attrs class, in the order in which fields are read."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        Field(field.name, hints[field.name], field.default is attrs.NOTHING) for field in attrs.fields(cls)
    )


def _refusal(misfit: Misfit, code: str | None) -> InvalidField:
    param = path_text(misfit.path)
    return InvalidField(param=param, message=f"{param} {misfit.must}", code=code)


@functools.cache
def _reader(annotation: Any) -> Read:
    hook = _converter().get_structure_hook(annotation)
    return lambda value: hook(value, annotation)


@functools.cache
def _converter() -> cattrs.Converter:
    """cattrs, with its own functions for attrs classes and with plain values that are not coerced."""
    converter = cattrs.Converter()
    plain: dict[Any, Read] = {str: text, int: integer, float: number, bool: boolean}
    for kind, read_plain in plain.items():
        converter.register_structure_hook(kind, _hook(read_plain))
    converter.register_structure_hook_func(lambda kind: kind is object, _hook(anything))
    factories: dict[Any, Callable[[Any], Read]] = {
        tuple: _list_reader,
        Mapping: lambda _: free_form,
        Literal: _literal_reader,
        Annotated: _annotated_reader,
        typing.Union: _union_reader,
        types.UnionType: _union_reader,
    }
    for origin, factory in factories.items():
        converter.register_structure_hook_factory(_has_origin(origin), _hook_factory(factory))
    converter.register_structure_hook_factory(attrs.has, _hook_factory(_object_reader))
    return converter


def _hook(read_value: Read) -> Callable[[object, Any], Any]:
    return lambda value, _: read_value(value)


def _hook_factory(factory: Callable[[Any], Read]) -> Callable[[Any], Callable[[object, Any], Any]]:
    return lambda kind: _hook(factory(kind))


def _has_origin(origin: object) -> Callable[[Any], bool]:
    return lambda kind: get_origin(kind) is origin


def _list_reader(kind: Any) -> Read:
    """An own loop: cattrs' goes on after the first wrong item, through a million of them if need be."""
    item = _reader(get_args(kind)[0])

    def read_list(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Misfit("must be a list")
        return each(value, item)

    return read_list


def _literal_reader(kind: Any) -> Read:
    words = get_args(kind)

    def read_word(value: object) -> object:
        for word in words:
            if type(value) is type(word) and value == word:
                return word
        raise Misfit(one_of(words))

    return read_word


def _annotated_reader(kind: Any) -> Read:
    base, *notes = get_args(kind)
    shapes = [note.structure for note in notes if isinstance(note, Shape)]
    rules = [note for note in notes if isinstance(note, Rule)]
    read_base = shapes[0] if shapes else _reader(base)

    def read_annotated(value: object) -> Any:
        found = read_base(value)
        for rule in rules:
            rule.check(found)
        return found

    return read_annotated


def _union_reader(kind: Any) -> Read:
    """``X | None`` reads as X; a union of attrs classes goes by the first field of each, a Literal."""
    members = [member for member in get_args(kind) if member is not type(None)]
    return _tagged_reader(members) if len(members) > 1 else _reader(members[0])


def _tagged_reader(members: list[Any]) -> Read:
    tag = table(members[0])[0].name
    readers = {word: _reader(member) for member in members for word in get_args(table(member)[0].annotation)}
    untagged = [_reader(member) for member in members if not table(member)[0].required]

    def read_tagged(value: object) -> Any:
        word = mapping(value).get(tag)
        if word is None and untagged:
            return untagged[0](value)
        if not isinstance(word, str) or word not in readers:
            raise Misfit(one_of(readers), tag)
        return readers[word](value)

    return read_tagged


def _object_reader(cls: type) -> Read:
    structured: Any = make_dict_structure_fn(cls, _converter(), _cattrs_detailed_validation=True)
    optional = {field.name for field in table(cls) if not field.required}

    def read_object(value: object) -> Any:
        given = mapping(value)
        absent = {name for name in optional & given.keys() if given[name] is None}
        present = {name: given[name] for name in given.keys() - absent} if absent else given
        try:
            return structured(present, cls)
        except cattrs.ClassValidationError as group:
            raise _first(group) from None

    return read_object


def _first(group: cattrs.ClassValidationError) -> Misfit:
    """The first wrong field, in the order in which the class lists them."""
    with_note, _ = group.group_exceptions()
    error, note = with_note[0]
    if isinstance(error, KeyError):
        return Misfit("is required", note.name)
    if isinstance(error, Misfit):
        return error.under(note.name)
    raise error
