"""The listing of models, as the wire has it."""

from __future__ import annotations

import pytest
from maple_protocols.adapter import ServedModel
from maple_protocols.errors import InvalidField, ModelNotFound, RequestError
from maple_protocols.openai.models import ModelsAdapter, names_model

CARD = {
    "id": "deepgrove/maple-preview",
    "object": "model",
    "created": 1_789_460_000,
    "owned_by": "deepgrove",
    "max_model_len": None,
}


def served(*, strict: bool) -> ServedModel:
    return ServedModel(id="deepgrove/maple-preview", created=1_789_460_000, max_model_len=None, strict=strict)


def test_the_list_holds_the_one_model() -> None:
    """GET /v1/models: one card, answered while loading too."""
    assert ModelsAdapter().answer(served(strict=True), None) == {"object": "list", "data": [CARD]}


@pytest.mark.parametrize("wanted", ["deepgrove/maple-preview", "Maple-Preview", "other/maple-preview"])
def test_a_card_is_found_by_name(wanted: str) -> None:
    """Ids with slashes too, in any case, whole or by the last segment."""
    assert ModelsAdapter().answer(served(strict=True), wanted) == CARD


def test_another_id_is_404_only_if_strict() -> None:
    """Another id: 404 if strict, else the card."""
    assert ModelsAdapter().answer(served(strict=False), "gpt-4o") == CARD
    with pytest.raises(ModelNotFound) as caught:
        ModelsAdapter().answer(served(strict=True), "gpt-4o" + "x" * 100)
    assert caught.value.status == 404
    assert caught.value.body.as_wire() == {
        "error": {
            "message": f"the model {'gpt-4o' + 'x' * 58!r} does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


@pytest.mark.parametrize(
    ("word", "ours", "same"),
    [
        ("maple", "maple", True),
        ("MAPLE", "maple", True),
        ("org/maple", "maple", True),
        ("maple", "org/maple", True),
        ("maple/", "maple", False),
        ("org", "org/maple", False),
        ("", "maple", False),
        ("maple-2", "maple", False),
    ],
)
def test_names_match_by_case_and_last_segment(word: str, ours: str, same: bool) -> None:
    """Matched case-insensitively, whole or by the last path segment."""
    assert names_model(word, ours) is same


def test_the_root_of_refusals_has_no_body_of_its_own() -> None:
    """Every leaf says what the client sees."""
    with pytest.raises(NotImplementedError):
        _ = RequestError().body
    assert InvalidField("a", "a must be 1").body.param == "a"
