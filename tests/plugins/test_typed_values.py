"""Plain text as JSON values by a schema."""

from __future__ import annotations

import pytest
from maple_plugins.parser import ToolSpec
from maple_plugins.typed_values import argument_schemas, json_text, object_text, schema_types


@pytest.mark.parametrize(
    ("text", "json_value"),
    [
        ("3", "3"),
        (" -1.5e3\n", "-1.5e3"),
        ("true", "true"),
        ("false", "false"),
        ("null", "null"),
        ("True", '"True"'),
        ("None", '"None"'),
        ("NaN", '"NaN"'),
        ("007", '"007"'),
        ("{}", '"{}"'),
        ("[1]", '"[1]"'),
        ("", '""'),
        (" é\n", '" é\\n"'),
    ],
)
@pytest.mark.parametrize("schema", [None, {}, {"description": "no type"}, "no schema", {"type": 5}])
def test_without_types_only_json_scalars_are_no_strings(text: str, json_value: str, schema: object) -> None:
    """A number, true, false or null is that; anything else is a string, as it stands."""
    assert json_text(text, schema) == json_value


@pytest.mark.parametrize(
    ("text", "schema", "json_value"),
    [
        ("3", {"type": "string"}, '"3"'),
        ("null", {"type": "string"}, '"null"'),
        ("3", {"type": "integer"}, "3"),
        ("3.0", {"type": "integer"}, "3.0"),
        ("3.5", {"type": "integer"}, '"3.5"'),
        ("3.5", {"type": "number"}, "3.5"),
        ("many", {"type": "number"}, '"many"'),
        ("True", {"type": "boolean"}, "true"),
        ("FALSE", {"type": "boolean"}, "false"),
        ("yes", {"type": "boolean"}, '"yes"'),
        ("None", {"type": ["string", "null"]}, "null"),
        ("null", {"type": ["string", "null"]}, "null"),
        ("3", {"type": ["string", "integer"]}, "3"),
        ("x", {"type": ["integer", 7]}, '"x"'),
        ('{"a": [1]}', {"type": "object"}, '{"a": [1]}'),
        ("[1]", {"type": "object"}, '"[1]"'),
        ("{'a': 1}", {"type": "object"}, "\"{'a': 1}\""),
        (" [1, 2] ", {"type": "array"}, "[1, 2]"),
        ("{}", {"type": "array"}, '"{}"'),
        ("3", {"type": "made up"}, '"3"'),
    ],
)
def test_a_value_has_the_type_of_its_schema(text: str, schema: object, json_value: str) -> None:
    """Text that fits none of the types is a string, so that the client sees what the model wrote."""
    assert json_text(text, schema) == json_value


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": ["null", "string"]}, {}]}, ("integer", "null", "string")),
        ({"oneOf": [{"anyOf": [{"type": "array"}]}]}, ("array",)),
        ({"allOf": [{"description": "nothing"}]}, None),
        ({"anyOf": "broken"}, None),
        ({"enum": ["a", 1, 1.5, True]}, ("string", "integer", "number", "boolean")),
        ({"enum": [None, [], {}]}, ("null", "array", "object")),
        ({"enum": []}, None),
        ({"enum": "broken"}, None),
        ({"const": 3}, ("integer",)),
        ({"const": None}, ("null",)),
    ],
)
def test_types_are_found_where_schemas_hide_them(schema: object, types: tuple[str, ...] | None) -> None:
    """Unions name them in branches, enumerations by their values."""
    assert schema_types(schema) == types


def test_schemas_of_arguments_are_found_by_tool() -> None:
    """A tool without parameters, or with odd ones, has none."""
    tools = (
        ToolSpec("bare"),
        ToolSpec("odd", {"properties": ["x"]}),
        ToolSpec("f", {"properties": {"x": {"type": "string"}}}),
    )
    assert argument_schemas(tools, "f") == {"x": {"type": "string"}}
    assert [argument_schemas(tools, name) for name in ("bare", "odd", "unknown")] == [{}, {}, {}]


def test_an_object_keeps_the_texts_of_its_values() -> None:
    """Keys are escaped, values are taken as they are."""
    assert object_text({}) == "{}"
    assert object_text({'é"': "1.50", "b": "[ ]"}) == '{"é\\"": 1.50, "b": [ ]}'
