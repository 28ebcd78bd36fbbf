"""Tools as real clients describe them: what is taught of them is true, and has the whole variety."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema

from tools.sapling.evaluate_http import Question, from_file
from tools.sapling.kinds import clients, schemas, tool_use, toolbox
from tools.sapling.tables import table
from tools.sapling.words import NAMES, PLACES, THINGS, Draws


def _client_tools(seed: int, count: int) -> list[toolbox.Tool]:
    rng = Draws(seed)
    return [clients.enriched(rng, toolbox.draw(rng, "train", 1)[0]) for _ in range(count)]


def test_a_call_of_a_clients_tool_is_what_its_schema_asks_for() -> None:
    """In every style its values are valid, nothing required is missing, and the question says each of them."""
    rng = Draws(16)
    for tool in _client_tools(16, 400):
        made = tool_use.request(rng, "train", tool)
        function = schemas.of_client(rng, [tool])[0]["function"]
        arguments = made.call.arguments
        jsonschema.validate(arguments, function.get("parameters", {"type": "object", "maxProperties": 0}))
        assert all(str(value) in made.text for value in _leaves(arguments))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [leaf for item in inner for leaf in _leaves(item)]
    return [value]


def test_clients_tools_have_everything_that_real_ones_have() -> None:
    """Enums, lists, nested objects, nothing at all, options that a question leaves out, and values of several words."""
    rng = Draws(17)
    tools = _client_tools(17, 400)
    held = {parameter.holds for tool in tools for parameter in tool.parameters}
    assert {"enum", "list", "object", "flag"} <= held
    assert any(not tool.parameters for tool in tools)
    calls = [(tool, tool_use.request(rng, "train", tool).call.arguments) for tool in tools]
    assert any(len(arguments) < len(tool.parameters) for tool, arguments in calls)
    assert any(str(leaf).count(" ") == 1 for _, arguments in calls for leaf in _leaves(arguments))


def test_one_client_writes_all_of_its_tools_alike() -> None:
    """The keys of ``parameters`` come in one order within a request, and in every client's order over many."""
    rng, orders = Draws(18), set()
    for _ in range(60):
        shown = schemas.of_client(rng, [tool for tool in _client_tools(18, 12) if len(tool.parameters) > 1])
        (order,) = {tuple(function["function"]["parameters"]) for function in shown}
        orders.add(order)
    assert orders == {style.keys for style in schemas.STYLES.values()}


def test_words_for_clients_tools_are_none_of_the_evaluations() -> None:
    """The evaluation's names, places, things and topics stay unseen."""
    told = json.dumps(table("clients"))
    unseen = {word for pool in (NAMES, PLACES, THINGS) for word in pool["heldout"]}
    unseen |= {tool.topic for tool in toolbox.WRITTEN["heldout"]}
    assert not unseen & set(re.findall("[A-Za-z]+", told))


def test_a_set_of_questions_comes_from_a_file(tmp_path: Path) -> None:
    """Who does not read the training data's code writes a set as JSON; its kinds are told apart."""
    asked: dict[str, Any] = {
        "tools": [],
        "messages": [{"role": "user", "content": "Hi"}],
        "expect": {"no_calls": True},
    }
    path = tmp_path / "set.json"
    path.write_text(json.dumps([{"kind": kind, **asked} for kind in ("one", "other", "one")]))
    question = Question(**asked)
    assert from_file(path) == {"one": [question, question], "other": [question]}
