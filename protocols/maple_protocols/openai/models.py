"""GET /v1/models and /v1/models/{id}: the one model that is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import attrs

from maple_protocols.adapter import JsonObject, ServedModel
from maple_protocols.answers import as_json
from maple_protocols.errors import ModelNotFound
from maple_protocols.rules import Doc

OWNER = "deepgrove"


def names_model(word: str, served: str) -> bool:
    """Whether a client's word means the served model: case aside, whole or by the last path segment."""
    asked, ours = word.casefold(), served.casefold()
    return asked == ours or asked.rpartition("/")[2] == ours.rpartition("/")[2]


@attrs.frozen(kw_only=True)
class ModelCard:
    """The served model."""

    id: str
    object: Literal["model"]
    created: Annotated[int, Doc("A constant.")]
    owned_by: str
    max_model_len: Annotated[int | None, Doc("The window in tokens; null while the weights load.")]


@attrs.frozen(kw_only=True)
class ModelList:
    """The one served model, under each of its names."""

    object: Literal["list"]
    data: tuple[ModelCard, ...]


class ModelsAdapter:
    """OpenAI's model listing. Another id gets the same card, or a 404 where the server is strict."""

    paths: ClassVar[tuple[str, ...]] = ("/v1/models", "/v1/models/(.+)")
    answers: ClassVar[Mapping[str, type]] = {"/v1/models": ModelList, "/v1/models/(.+)": ModelCard}

    def answer(self, served: ServedModel, wanted: str | None) -> JsonObject:
        """The list, or one card where ``wanted`` is an id. Raises ModelNotFound."""
        names = (served.id, *served.aliases)
        if wanted is None:
            return as_json(ModelList(object="list", data=tuple(_card(served, name) for name in names)))
        if served.strict and not any(names_model(wanted, name) for name in names):
            raise ModelNotFound(wanted)
        known = next((name for name in names if names_model(wanted, name)), served.id)
        return as_json(_card(served, known))


def _card(served: ServedModel, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        object="model",
        created=served.created,
        owned_by=OWNER,
        max_model_len=served.max_model_len,
    )
