"""What real clients send is answered: the names of their fields, recorded by ``tox -e clients``."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING, Any

import pytest

from maple.scripted.script import Recording

if TYPE_CHECKING:
    from tests.http.conftest import Serve

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "clients"
CLIENTS = sorted(file.stem for file in FOLDER.glob("*.json"))


def with_ids(body: Any, item: str) -> Any:
    """References lead to what the server just gave out: no recorded id can."""
    if isinstance(body, list):
        return [with_ids(each, item) for each in body]
    if not isinstance(body, dict):
        return body
    filled = {key: with_ids(value, item) for key, value in body.items()}
    return filled | ({"id": item} if body.get("type") == "item_reference" else {})


@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_client_sends_is_answered(serve: Serve, client: str) -> None:
    """Every recorded request, in order, gets a 200 at the extended level."""
    server = serve(Recording(pieces=("Hm.", "</think>", "\n\nText.")), api_level="extended")
    stored = server.post("/v1/responses", {"input": "hi", "store": True})
    item = stored.json["output"][-1]["id"] if stored.status == 200 else ""
    for request in json.loads((FOLDER / f"{client}.json").read_text("utf-8")):
        answer = server.post(request["path"], with_ids(request["body"], item))
        assert answer.status == 200, answer.body
        assert b'"error":{' not in answer.body
