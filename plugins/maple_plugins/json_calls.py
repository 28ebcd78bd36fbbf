"""Tool calls written as JSON objects: ``{"name": …, "arguments": …}``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import attrs

from maple_plugins.events import ToolCall
from maple_plugins.json_scan import WHITE_SPACE, JsonScan, skip_spaces

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _number(text: str) -> list[object]:
    """A number as its own text, exact at any size; unlike any array, since no 0 is ever decoded to 0."""
    return [text, 0]


_DECODER = json.JSONDecoder(parse_int=_number, parse_float=_number)


_ELSEWHERE = ("parameters", "args", "input")
_LABELS = frozenset({"name", "id", "type", "index"})


@attrs.frozen
class _Member:
    value: object
    text: str


def read_call(
    text: str, arguments: Sequence[str] = ("arguments",), *, required: bool = False
) -> ToolCall | None:
    """The call that a complete JSON object is, or None where it is none.

    ``arguments`` are the member names that may hold the arguments; the first that is there counts. They are
    an object, a string holding one, or null or missing, which mean no arguments; ``required`` refuses missing
    ones.
    """
    members = dict(_members(text))
    name = members.get("name")
    holder = next((members[key] for key in arguments if key in members), None)
    if name is None or not _is_text(name.value) or (required and holder is None):
        return None
    own_text = "{}" if holder is None else _object_text(holder)
    return None if own_text is None else ToolCall(str(name.value), own_text)


def read_strayed_call(text: str) -> ToolCall | None:
    """As ``read_call``, for models that put the arguments elsewhere: a call never loses what it was given.

    Where ``arguments`` is missing, blank or empty, an object under another name that models use counts; with none
    of these, any further member with a value must be an argument that strayed, and there is no call.
    """
    members = dict(_members(text))
    blank = _is_blank(members.get("arguments"))
    call = read_call(text, () if blank else ("arguments",))
    if call is None or call.arguments[1:-1].strip(WHITE_SPACE):
        return call
    found = [members[key] for key in _ELSEWHERE if key in members and members[key].value is not None]
    for own_text in map(_object_text, found):
        if own_text is not None:
            return attrs.evolve(call, arguments=own_text)
    strays = members.keys() - _LABELS - {"arguments"}
    return None if any(members[key].value is not None for key in strays) else call


def call_key(call: ToolCall) -> str:
    """Equal for two calls just when name and arguments are the same, however these are spaced and ordered."""
    return json.dumps([call.name, _DECODER.decode(call.arguments)], sort_keys=True)


def is_json(text: str, bracket: str) -> bool:
    """Whether the text is one JSON object (``{``) or one array (``[``) and nothing else."""
    if not text.startswith(bracket):
        return False
    scan = JsonScan(bracket)
    return scan.feed(text, 1) == len(text) and scan.state == "complete"


def _is_text(value: object) -> bool:
    """Whether a decoded value is a non-empty string that can be sent: escapes can spell lone surrogates."""
    return isinstance(value, str) and value != "" and _LONE_SURROGATE.search(value) is None


def _is_blank(member: _Member | None) -> bool:
    return member is not None and isinstance(member.value, str) and not member.value.strip(WHITE_SPACE)


def _object_text(member: _Member) -> str | None:
    if member.value is None:
        return "{}"
    if isinstance(member.value, dict):
        return member.text
    if not isinstance(member.value, str):
        return None
    text = member.value.strip(WHITE_SPACE)
    return text if _is_text(text) and is_json(text, "{") else None


def _members(text: str) -> Iterator[tuple[str, _Member]]:
    """The members of a complete JSON object, each with its own text."""
    at = skip_spaces(text, 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = skip_spaces(text, skip_spaces(text, at) + 1)
        value, end = _DECODER.raw_decode(text, start)
        yield name, _Member(value, text[start:end])
        at = skip_spaces(text, end)
        at = skip_spaces(text, at + 1) if text[at] == "," else at
