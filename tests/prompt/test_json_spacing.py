"""JSON text spelt anew: the template's spacing, and not a bit of the value lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maple.prompt.json_spacing import SPACINGS

SPACED, COMPACT = SPACINGS
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.booleans(), st.sampled_from([None, 1]), st.sampled_from([None, (",", ":"), (" , ", " : ")]))
def test_any_spelling_becomes_the_one(
    value: object, ascii_only: bool, indent: int | None, separators: tuple[str, str] | None
) -> None:
    """However a client writes a value, the text is the one that json.dumps writes."""
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent, separators=separators)
    assert SPACED.respell(text) == json.dumps(value, ensure_ascii=False)
    assert COMPACT.respell(text) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    ("text", "respelt"),
    [
        ('{"n":1.50,"m":1E+05,"k":-0}', '{"n": 1.50, "m": 1E+05, "k": -0}'),
        ('{"n":' + "9" * 5000 + "}", '{"n": ' + "9" * 5000 + "}"),
        ('{"a":1,"a":2}', '{"a": 1, "a": 2}'),
        ('{"a":"x,  y: z\\"{"}', '{"a": "x,  y: z\\"{"}'),
        ('{"a":"\\ud83c\\udf41"}', '{"a": "🍁"}'),
        ('{"a":"\\ud83c\\u00fc"}', '{"a": "\\ud83c\\u00fc"}'),
    ],
)
def test_what_decoding_would_lose_stays(text: str, respelt: str) -> None:
    """Numbers keep their digits, doubled keys stay, and half a surrogate pair stays an escape."""
    assert SPACED.respell(text) == respelt
