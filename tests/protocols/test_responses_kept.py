"""Stored responses: what is kept of one, how a conversation goes on from it, and the routes that show it."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maple_plugins.events import ContentDelta, ReasoningDelta
from maple_protocols.adapter import Done, Identity, Kept, NumberedCall, Policy, TurnEvent, Usage
from maple_protocols.ask import Ask, CalledTool, Conversation, Message
from maple_protocols.errors import InvalidField
from maple_protocols.openai.responses import ResponsesAdapter
from maple_protocols.openai.responses_conversation import conversation
from maple_protocols.openai.responses_items import Items
from maple_protocols.openai.responses_kept import wire_items

KEY = "0123456789abcdef" * 2
NEXT = "fedcba9876543210" * 2
POLICY = Policy(response_store=True)
USAGE = Usage(prompt_tokens=5, completion_tokens=7)
CALL = NumberedCall(index=0, id="call_" + "0" * 24, name="look", arguments='{"a": 1}')
TURN: tuple[TurnEvent, ...] = (
    ReasoningDelta("hm"),
    ContentDelta("Let me look."),
    CALL,
    Done(finish="tool_calls", usage=USAGE),
)


def ask(**fields: Any) -> Ask:
    return ResponsesAdapter().structure({"input": "hi", "store": True, **fields}, POLICY)


def answered(wish: Ask, key: str = KEY, events: tuple[TurnEvent, ...] = TURN) -> Kept:
    adapter = ResponsesAdapter()
    fold = adapter.fold(wish, Identity(key=key, created=1_789_460_000, model="m"))
    for event in events:
        fold.event(event)
    return adapter.kept(wish, fold.body())


def messages(wish: Ask) -> tuple[Message, ...]:
    assert isinstance(wish.prompt, Conversation)
    return wish.prompt.messages


def test_store_and_previous_reach_the_ask() -> None:
    """They are neutral words: keep this answer, go on from that one."""
    wish = ask(previous_response_id="resp_x")
    assert (wish.keep, wish.follows) == (True, "resp_x")
    assert (ask(store=False).keep, ask(store=False).follows) == (False, None)


def test_a_kept_answer_is_the_answer_with_its_input() -> None:
    """The body as the client got it, and the input as items with ids."""
    kept = answered(ask())
    assert (kept.id, kept.created) == (f"resp_{KEY}", 1_789_460_000)
    assert (kept.body["status"], kept.body["store"]) == ("completed", True)
    assert kept.items == (
        {
            "id": f"msg_in{KEY}0000",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_text", "text": "hi"}],
        },
    )
    json.dumps(attrs.asdict(kept))


def test_a_conversation_goes_on_where_it_was() -> None:
    """Earlier input, earlier output, new input; the answer to a call finds the call before it."""
    earlier = answered(ask(instructions="Be brief."))
    output = {"type": "function_call_output", "call_id": CALL.id, "output": "42"}
    wish = ask(input=[output], instructions="Be kind.", previous_response_id=earlier.id)
    going_on = ResponsesAdapter().continued(wish, earlier)
    assert messages(going_on) == (
        Message(role="system", content="Be kind."),
        Message(role="user", content="hi"),
        Message(
            role="assistant",
            content="Let me look.",
            reasoning="hm",
            tool_calls=(CalledTool(name="look", arguments='{"a": 1}'),),
        ),
        Message(role="tool", content="42"),
    )


def test_instructions_and_tools_are_those_of_the_new_request() -> None:
    """As with OpenAI, they are not carried over."""
    earlier = answered(ask(instructions="Be brief.", tools=[{"type": "function", "name": "look"}]))
    going_on = ResponsesAdapter().continued(ask(previous_response_id=earlier.id), earlier)
    assert isinstance(going_on.prompt, Conversation)
    assert (going_on.prompt.messages[0].role, going_on.prompt.tools) == ("user", ())


def test_a_chain_holds_everything_and_keeps_its_ids() -> None:
    """The third response still knows the first, whose items are called what they were called then."""
    first = answered(ask(input="one"))
    second = answered(ResponsesAdapter().continued(ask(input="two"), first), NEXT)
    third = ResponsesAdapter().continued(ask(input="three"), second)
    assert [m.content for m in messages(third) if m.role == "user"] == ["one", "two", "three"]
    assert second.items[: len(first.items)] == first.items
    ids = [item["id"] for item in second.items]
    assert len(set(ids)) == len(ids) == 5


TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
ARGUMENTS = st.one_of(st.just(""), st.just('{"a":  1}'), st.just({"b": [1, "ü"]}))
CALLS = st.lists(
    st.builds(lambda a: {"type": "function", "function": {"name": "f", "arguments": a}}, ARGUMENTS),
    max_size=2,
)
ITEM = st.one_of(
    st.builds(lambda r, c: {"role": r, "content": c}, st.sampled_from(["user", "system", "developer"]), TEXT),
    st.builds(
        lambda c, r, t: {"role": "assistant", "content": c, "reasoning_content": r, "tool_calls": t},
        TEXT,
        st.none() | TEXT,
        CALLS,
    ),
    st.builds(lambda c: {"role": "tool", "content": c, "tool_call_id": "x"}, TEXT),
    st.builds(
        lambda a, i: {"type": "function_call", "name": "f", "call_id": i, "arguments": a},
        ARGUMENTS,
        st.none() | st.just("call_1") | st.just(5),
    ),
    st.builds(lambda c: {"type": "function_call_output", "call_id": "x", "output": c}, TEXT),
    st.builds(
        lambda c, s: {
            "type": "reasoning",
            "content": [{"type": "reasoning_text", "text": c}],
            "summary": [{"type": "summary_text", "text": s}],
        },
        TEXT,
        TEXT,
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=6))
def test_listed_items_read_back_as_the_same_conversation(items: list[dict[str, Any]]) -> None:
    """Whatever the client sent, also after a second time; arguments given as an object become their text."""
    sent = Items().structure(items)
    again = Items().structure([*wire_items(sent)])

    def spoken(found: Any) -> list[Message]:
        return [
            attrs.evolve(
                message,
                tool_calls=tuple(
                    call
                    if isinstance(call.arguments, str)
                    else CalledTool(name=call.name, arguments=json.dumps(call.arguments, ensure_ascii=False))
                    for call in message.tool_calls
                ),
            )
            for message in conversation(found)
        ]

    assert spoken(again) == spoken(sent)
    assert wire_items(again) == wire_items(sent)


@pytest.mark.parametrize("call_id", [None, 5, {"a": "b"}])
def test_a_call_without_a_readable_id_has_an_empty_one(call_id: object) -> None:
    """It was taken without one, so it is shown without one."""
    (item,) = ask(input=[{"type": "function_call", "name": "f", "call_id": call_id}]).items
    assert item["call_id"] == ""


def long_kept(count: int = 25) -> Kept:
    return answered(ask(input=[{"role": "user", "content": str(n)} for n in range(count)]))


def numbers(page: dict[str, Any]) -> list[int]:
    return [int(item["content"][0]["text"]) for item in page["data"]]


def test_the_items_come_in_pages_from_the_last_on() -> None:
    """Twenty, in reverse order, unless the query wants it otherwise; ``after`` goes on."""
    stored, kept = ResponsesAdapter(), long_kept()
    first: Any = stored.page(kept, {})
    assert (first["object"], first["has_more"], numbers(first)) == ("list", True, [*range(24, 4, -1)])
    assert (first["first_id"], first["last_id"]) == (first["data"][0]["id"], first["data"][-1]["id"])
    second: Any = stored.page(kept, {"after": first["last_id"]})
    assert (second["has_more"], numbers(second)) == (False, [4, 3, 2, 1, 0])
    third: Any = stored.page(kept, {"after": second["last_id"]})
    assert third == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_the_query_says_order_and_limit() -> None:
    """A page that ends exactly at the end has no more after it."""
    stored, kept = ResponsesAdapter(), long_kept()
    assert numbers(stored.page(kept, {"order": "asc", "limit": 3})) == [0, 1, 2]
    assert stored.page(kept, {"limit": 25})["has_more"] is False


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": "ten"}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "msg_nobody"}, "after"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_by_name(query: dict[str, object], param: str) -> None:
    """400 invalid_parameter."""
    with pytest.raises(InvalidField) as caught:
        ResponsesAdapter().page(long_kept(), query)
    assert (caught.value.param, caught.value.code) == (param, "invalid_parameter")


def test_showing_and_deleting() -> None:
    """The response as it was; the id and that it is gone."""
    stored, kept = ResponsesAdapter(), long_kept()
    assert stored.stored(kept, {}) == stored.stored(kept, {"stream": "false"}) == kept.body
    with pytest.raises(InvalidField, match="stream must be false"):
        stored.stored(kept, {"stream": "true"})
    assert stored.deleted("resp_x") == {"id": "resp_x", "object": "response", "deleted": True}
