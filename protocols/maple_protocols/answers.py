"""Answers: attrs classes become JSON. A field without a default is always there, one with a default only where
it differs; the API's description (``schema.answer_schema``) says the same of the same classes.
"""

from __future__ import annotations

import cattrs

# Lists, not tuples: what goes out equals what a client reads.
_converter = cattrs.Converter(omit_if_default=True, unstruct_collection_overrides={tuple: list})


def as_json(answer: object) -> dict[str, object]:
    """An answer, or an object of JSON that holds some, as JSON alone."""
    found: dict[str, object] = _converter.unstructure(answer)
    return found
