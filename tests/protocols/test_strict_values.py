"""The contract's "Values", row by row, on a small table of fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import attrs
import pytest
from maple_protocols.errors import InvalidField
from maple_protocols.rules import Length, Misfit, NotEmpty, Pattern, Range, Rule, Shape
from maple_protocols.strict import path_text, structure


@attrs.frozen(kw_only=True)
class Square:
    kind: Literal["square"]
    side: int


@attrs.frozen(kw_only=True)
class Circle:
    kind: Literal["circle", "disc"]
    radius: float


@attrs.frozen(kw_only=True)
class Remark:
    kind: Literal["remark"] = "remark"
    words: str


@attrs.frozen(kw_only=True)
class Sample:
    label: str | None = None
    count: int | None = None
    ratio: float | None = None
    flag: bool = False
    word: Literal["yes", "no"] | None = None
    only: Literal[1] | None = None
    empty: Literal[""] | None = None
    short: Annotated[str | None, Length(least=1, most=3)] = None
    share: Annotated[float | None, Range(above=0, most=1)] = None
    whole: Annotated[int | None, Range(least=-1)] = None
    code: Annotated[str | None, Pattern("[a-z]+", "lower-case letters")] = None
    names: tuple[str, ...] = ()
    some: Annotated[tuple[int, ...] | None, NotEmpty()] = None
    free: Mapping[str, object] | None = None
    inert: object = None
    shape: Square | Circle | None = None
    items: tuple[Square | Remark, ...] = ()


def read(body: dict[str, Any], **options: Any) -> Sample:
    return structure(Sample, body, **{"refuse_unknown": False, **options})


def refusal(body: dict[str, Any], **options: Any) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        read(body, **options)
    return caught.value


def test_null_means_absent_for_every_optional_field() -> None:
    """Null is as good as leaving the field out, whatever its default."""
    nulls = {field.name: None for field in attrs.fields(Sample)}
    assert read(nulls) == read({}) == Sample()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"count": True}, "count"),
        ({"ratio": False}, "ratio"),
        ({"share": True}, "share"),
        ({"only": True}, "only"),
        ({"names": [True]}, "names[0]"),
    ],
)
def test_a_bool_is_not_a_number(body: dict[str, Any], param: str) -> None:
    """A bool is not an integer, though Python thinks so; nor a float, nor a string."""
    assert refusal(body).param == param


@pytest.mark.parametrize(
    "body", [{"count": "1"}, {"ratio": "0.5"}, {"flag": "true"}, {"only": "1"}, {"whole": "0"}]
)
def test_a_string_is_not_a_number(body: dict[str, Any]) -> None:
    """A string is not a number or a bool, whatever it spells."""
    assert refusal(body).param == next(iter(body))


@pytest.mark.parametrize("value", [1.5, 2.0, 1e3, -0.0])
def test_a_float_is_not_an_integer(value: float) -> None:
    """1.5 and 2.0 are not integers."""
    assert refusal({"count": value}).message == "count must be an integer"
    assert refusal({"some": [1, value]}).param == "some[1]"
    assert refusal({"only": 1.0}).message == "only must be 1"


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400])
@pytest.mark.parametrize("field", ["count", "whole", "ratio", "share"])
def test_integers_outside_int64_are_refused(field: str, value: int) -> None:
    """Outside int64 is 400 naming the field, for integers and numbers alike, never an overflow."""
    assert refusal({field: value}).message == f"{field} must be an integer of at most 64 bits"


def test_integers_at_the_edges_pass() -> None:
    """Both ends of int64 are inside it."""
    assert read({"count": 2**63 - 1}).count == 2**63 - 1
    assert read({"count": -(2**63)}).count == -(2**63)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"label": "a\ud83d"}, "label"),
        ({"label": "\udc4d"}, "label"),
        ({"names": ["a", "\ud83d"]}, "names[1]"),
        ({"free": {"a": ["\ud83d"]}}, "free"),
        ({"free": {"\ud83d": 1}}, "free"),
        ({"inert": "\ud83d"}, "inert"),
        ({"inert": [{"a": "\ud83d"}]}, "inert"),
        ({"items": [{"words": "\ud83d"}]}, "items[0].words"),
    ],
)
def test_lone_surrogates_are_refused_by_path(body: dict[str, Any], param: str) -> None:
    """Lone surrogates are 400 naming the field by its path; inside a free-form object, the object's."""
    assert refusal(body).param == param
    assert refusal(body).message == f"{param} must not hold a lone surrogate"


def test_whole_surrogate_pairs_are_text() -> None:
    """A character outside the basic plane is like any other."""
    assert read({"label": "\U0001f44d"}).label == "\U0001f44d"


def test_free_form_objects_hold_any_json() -> None:
    """Free-form objects may hold any JSON number, and everything else."""
    free = {"big": 10**3000, "float": 1.5, "list": [None, True, {"a": {}}]}
    assert read({"free": free}).free == free
    assert refusal({"free": [free]}).message == "free must be an object"


@pytest.mark.parametrize("value", [1, "x", [2**80], {"a": "\U0001f44d"}, False])
def test_inert_fields_take_anything(value: object) -> None:
    """A field without effect may hold any JSON."""
    assert read({"inert": value}).inert == value


def test_enumerations_name_their_words() -> None:
    """An enumeration's refusal lists what it takes."""
    assert refusal({"word": "maybe"}).message == "word must be one of yes, no"
    assert refusal({"word": ["yes"]}).message == "word must be one of yes, no"
    assert refusal({"only": 2}).message == "only must be 1"
    assert refusal({"empty": "x"}).message == 'empty must be ""'
    assert read({"word": "yes", "only": 1, "empty": ""}) == Sample(word="yes", only=1, empty="")


def test_strings_have_bounded_length() -> None:
    """Length counts characters; each end has its own words."""
    assert read({"short": "abc"}).short == "abc"
    assert refusal({"short": "abcd"}).message == "short must be at most 3 characters long"
    assert refusal({"short": ""}).message == "short must not be empty"
    assert refusal({"short": 3}).message == "short must be a string"


@pytest.mark.parametrize("value", [0, -0.5, 1.0000001, 2])
def test_numbers_have_bounds(value: float) -> None:
    """A range says where it begins and ends; an open end does not belong to it."""
    assert refusal({"share": value}).message == "share must be greater than 0 and at most 1"
    assert read({"share": 1}).share == 1.0
    assert refusal({"whole": -2}).message == "whole must be at least -1"
    assert read({"whole": -1}).whole == -1


def test_numbers_come_out_as_floats() -> None:
    """An integer is a fine number."""
    assert isinstance(read({"ratio": 1}).ratio, float)
    assert read({"ratio": 0.25}).ratio == 0.25


def test_patterns_match_as_a_whole() -> None:
    """A pattern is not satisfied by a part, nor by a line."""
    assert read({"code": "abc"}).code == "abc"
    assert refusal({"code": "abc\n"}).message == "code must be lower-case letters"


def test_lists_are_lists_of_their_kind() -> None:
    """A list is a list, its items are named by index, and it may have to hold one."""
    assert read({"names": ["a", "b"], "some": [1]}) == Sample(names=("a", "b"), some=(1,))
    assert refusal({"names": "ab"}).message == "names must be a list"
    assert refusal({"names": ["a", None]}).message == "names[1] must be a string"
    assert refusal({"some": []}).message == "some must not be empty"


def test_objects_go_by_their_tag() -> None:
    """A union's member is chosen by its first field; what follows is checked by that member alone."""
    assert read({"shape": {"kind": "square", "side": 2}}).shape == Square(kind="square", side=2)
    assert read({"shape": {"kind": "disc", "radius": 2}}).shape == Circle(kind="disc", radius=2.0)
    assert refusal({"shape": {"kind": "cube"}}).message == "shape.kind must be one of square, circle, disc"
    assert refusal({"shape": {}}).param == "shape.kind"
    assert refusal({"shape": {"kind": ["square"]}}).param == "shape.kind"
    assert refusal({"shape": "square"}).message == "shape must be an object"
    assert refusal({"shape": {"kind": "square"}}).message == "shape.side is required"
    assert refusal({"shape": {"kind": "square", "side": None}}).message == "shape.side must be an integer"


def test_a_member_whose_tag_is_optional_is_the_default() -> None:
    """Where one member does not need its tag, an object without tag is that member."""
    items = [{"words": "hi"}, {"kind": "remark", "words": "ho"}, {"kind": "square", "side": 1}]
    assert read({"items": items}).items == (
        Remark(words="hi"),
        Remark(words="ho"),
        Square(kind="square", side=1),
    )
    assert refusal({"items": [{}]}).message == "items[0].words is required"


def test_unknown_top_level_fields_are_ignored_or_refused() -> None:
    """Unknown top-level fields: ignored, or refused as invalid_parameter whatever code the protocol uses."""
    assert read({"frobnicate": 1}) == Sample()
    error = refusal({"frobnicate": 1}, refuse_unknown=True)
    assert (error.param, error.code, error.message) == (
        "frobnicate",
        "invalid_parameter",
        "frobnicate is not a known field",
    )
    assert read({"count": 1}, refuse_unknown=True) == Sample(count=1)


def test_unknown_keys_further_down_are_ignored() -> None:
    """Only the top level can be refused for what it does not know."""
    square = {"kind": "square", "side": 1, "colour": "red"}
    assert read({"shape": square}, refuse_unknown=True).shape == Square(kind="square", side=1)


def test_the_first_field_of_the_table_is_blamed() -> None:
    """The table's order decides, not the body's; unknown fields come last."""
    body = {"frobnicate": 1, "share": 7, "word": "maybe", "count": "x"}
    assert refusal(body, refuse_unknown=True).param == "count"


def test_the_protocols_code_goes_with_its_refusals() -> None:
    """One protocol's refusals carry a code, the other's none."""
    assert refusal({"count": "x"}).code is None
    assert refusal({"count": "x"}, code="invalid_parameter").code == "invalid_parameter"


def test_checks_run_in_their_fields_turn() -> None:
    """A check sees what came before its field, and is not run where the field is absent."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def check(value: str, earlier: Mapping[str, Any]) -> None:
        seen.append((value, dict(earlier)))
        raise Misfit("must be something else", "deep", 1)

    error = refusal({"count": 1, "word": "yes", "share": "x"}, checks={"word": check, "label": check})
    assert (error.param, error.message) == ("word.deep[1]", "word.deep[1] must be something else")
    assert seen == [("yes", {"count": 1, "word": "yes"})]


def test_client_text_in_a_refusal_is_cut_and_clean() -> None:
    """Client text echoed is cut at 64 characters, and can be encoded whatever it was."""
    body = refusal({"x" * 1000: 1}, refuse_unknown=True).body
    assert body.param == "x" * 64
    assert body.message == "x" * 64 + " is not a known field"
    assert refusal({"\ud83d": 1}, refuse_unknown=True).body.param == "?"


def test_paths_are_spelled_as_in_code() -> None:
    """Keys by dots, indices in brackets."""
    assert path_text(("messages", 1, "tool_calls", 0, "function")) == "messages[1].tool_calls[0].function"


def test_rules_and_shapes_are_abstract() -> None:
    """A rule or shape without its methods is a mistake of its author, told at once."""
    for call in (Rule().schema, Shape().schema, lambda: Rule().check(1), lambda: Shape().structure(1)):
        with pytest.raises(NotImplementedError):
            call()
