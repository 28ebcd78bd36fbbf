"""GET /v1/models and /v1/models/{id}: the one model that is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from maple_protocols.adapter import JsonObject, ServedModel
from maple_protocols.errors import ModelNotFound
from maple_protocols.openai.described import ModelCard, ModelList

OWNER = "deepgrove"


def names_model(word: str, served: str) -> bool:
    """Whether a client's word means the served model: case aside, whole or by the last path segment."""
    asked, ours = word.casefold(), served.casefold()
    return asked == ours or asked.rpartition("/")[2] == ours.rpartition("/")[2]


class ModelsAdapter:
    """OpenAI's model listing. Another id gets the same card, or a 404 where the server is strict."""

    paths: ClassVar[tuple[str, ...]] = ("/v1/models", "/v1/models/(.+)")
    answers: ClassVar[Mapping[str, type]] = {"/v1/models": ModelList, "/v1/models/(.+)": ModelCard}

    def answer(self, served: ServedModel, wanted: str | None) -> JsonObject:
        """The list, or one card where ``wanted`` is an id. Raises ModelNotFound."""
        if wanted is None:
            return {"object": "list", "data": [_card(served)]}
        if served.strict and not names_model(wanted, served.id):
            raise ModelNotFound(wanted)
        return _card(served)


def _card(served: ServedModel) -> JsonObject:
    return {
        "id": served.id,
        "object": "model",
        "created": served.created,
        "owned_by": OWNER,
        "max_model_len": served.max_model_len,
    }
