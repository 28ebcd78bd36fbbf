"""The sample of docs/writing-a-protocol.md works as it is told there."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
from typing import Any

import pytest
from maple_plugins.events import ContentDelta, ReasoningDelta
from maple_protocols.adapter import Done, Identity, Policy, Usage
from maple_protocols.ask import Conversation
from maple_protocols.errors import ErrorBody, InvalidField
from maple_protocols.json import parse_body
from maple_protocols.schema import json_schema

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "writing-a-protocol.md"
IDENTITY = Identity(key="0" * 32, created=0, model="m")
EVENTS = [ReasoningDelta("hm"), ContentDelta("a"), ContentDelta("b")]
DONE = Done(finish="stop", usage=Usage(prompt_tokens=1, completion_tokens=3))


@pytest.fixture
def adapter(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The guide's sample, as a reader would save and import it."""
    (sample,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    source = tmp_path / "acme_generate.py"
    source.write_text(sample, "utf-8")
    spec = importlib.util.spec_from_file_location("acme_generate", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "acme_generate", module)
    spec.loader.exec_module(module)
    return module.GenerateAdapter()


def test_the_sample_takes_a_request(adapter: Any) -> None:
    """Its fields are checked as its table says."""
    ask = adapter.structure(parse_body(b'{"text": "hi", "limit": 5}'), Policy())
    assert isinstance(ask.prompt, Conversation)
    assert (ask.prompt.messages[0].content, ask.max_tokens) == ("hi", 5)
    for body, message in (
        (b"{}", "text is required"),
        (b'{"text": ""}', "text must not be empty"),
        (b'{"text": "a", "limit": 0}', "limit must be at least 1"),
        (b'{"text": "a", "n": 1}', "n is not a known field"),
    ):
        with pytest.raises(InvalidField, match=message):
            adapter.structure(parse_body(body), Policy())


def test_the_sample_answers_alike_streamed_and_whole(adapter: Any) -> None:
    """Its stream folds to its whole answer."""
    ask = adapter.structure({"text": "hi"}, Policy())
    encoder, fold = adapter.encoder(ask, IDENTITY), adapter.fold(ask, IDENTITY)
    frames = list(encoder.opening())
    for event in (*EVENTS, DONE):
        frames += encoder.event(event)
        fold.event(event)
    assert "".join(frame.data["text"] for frame in frames) == fold.body()["text"] == "ab"
    error = ErrorBody(message="generation failed", type="server_error")
    assert [frame.data for frame in (*encoder.failure(error), *encoder.closing())] == [
        error.as_wire(),
        "[DONE]",
    ]


def test_the_sample_is_described(adapter: Any) -> None:
    """Its table makes its schema."""
    schema = json_schema(adapter.request, closed=adapter.closed)
    assert schema["required"] == ["text"]
    assert schema["additionalProperties"] is False
