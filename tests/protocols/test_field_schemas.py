"""The field tables, described: what /openapi.json will be made of."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from maple_protocols.openai.chat import ChatAdapter
from maple_protocols.openai.chat_in import ChatRequest
from maple_protocols.openai.completions import CompletionRequest, CompletionsAdapter
from maple_protocols.openai.responses import ResponsesAdapter
from maple_protocols.schema import json_schema

REQUESTS = [ChatAdapter.request, CompletionsAdapter.request, ResponsesAdapter.request]


def properties(cls: type) -> dict[str, Any]:
    found = json_schema(cls)["properties"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("cls", REQUESTS)
def test_every_field_is_described(cls: type) -> None:
    """Each line of a table has a description and, where optional, takes null."""
    described = properties(cls)
    assert list(described) == [field.name for field in attrs.fields(cls)]
    for field in attrs.fields(cls):
        assert described[field.name]["description"]
        if field.default is not attrs.NOTHING:
            takes = described[field.name].get("anyOf", [{"type": "null"}])
            assert {"type": "null"} in takes


def test_rules_become_keywords() -> None:
    """Bounds, lengths, patterns, enumerations and list sizes are those of the check."""
    chat = properties(ChatRequest)
    assert chat["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert chat["top_p"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert chat["seed"]["anyOf"][0] == {
        "type": "integer",
        "format": "int64",
        "minimum": -(2**63),
        "maximum": 2**63 - 1,
    }
    assert chat["max_tokens"]["anyOf"][0]["minimum"] == 1
    assert chat["model"]["anyOf"][0] == {"type": "string", "maxLength": 256}
    assert chat["n"]["anyOf"][0] == {"enum": [1]}
    assert chat["session_id"]["anyOf"][0]["pattern"] == "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$"
    assert chat["messages"]["minItems"] == 1
    assert chat["stream"]["anyOf"][0] == {"type": "boolean"}
    assert chat["user"] == {"description": "Accepted, without effect."}


def test_shapes_describe_themselves() -> None:
    """Types that JSON spells in several ways list them all."""
    chat, completion = properties(ChatRequest), properties(CompletionRequest)
    assert [option.get("type") for option in chat["stop"]["anyOf"][0]["anyOf"]] == ["string", "array"]
    assert chat["tool_choice"]["anyOf"][0]["anyOf"][0] == {"enum": ["none", "auto", "required"]}
    kinds = chat["response_format"]["anyOf"][0]["properties"]["type"]
    assert kinds == {"enum": ["text", "json_object", "json_schema"]}
    assert chat["chat_template_kwargs"]["anyOf"][0]["properties"] == {"enable_thinking": {"type": "boolean"}}
    assert [option.get("type") for option in completion["prompt"]["anyOf"]] == ["string", "array", "array"]


def test_nested_tables_are_nested_schemas() -> None:
    """Messages are told apart by role, tools hold functions, free-form objects stay free."""
    chat = properties(ChatRequest)
    roles = [member["properties"]["role"]["enum"] for member in chat["messages"]["items"]["anyOf"]]
    assert roles == [["system", "developer"], ["user"], ["assistant"], ["tool"]]
    function = chat["tools"]["anyOf"][0]["items"]["properties"]["function"]
    assert function["required"] == ["name"]
    assert function["properties"]["name"] == {"type": "string", "minLength": 1}
    assert function["properties"]["parameters"]["anyOf"][0] == {"type": "object"}
    assert "required" not in chat["stream_options"]["anyOf"][0]


def test_a_closed_schema_refuses_unknown_fields() -> None:
    """Protocols that refuse unknown fields say so."""
    assert json_schema(ChatRequest, closed=True)["additionalProperties"] is False
    assert "additionalProperties" not in json_schema(ChatRequest)
