"""The generated conversations: exact in the template, right in their sums, and split so that nothing held
out is trained on.
"""

from __future__ import annotations

import ast
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.sapling.conversation import (
    Call,
    Conversation,
    Exchange,
    Reply,
    completion_text,
    message_of,
    messages_before,
    prompt_text,
    segments,
    user,
)
from tools.sapling.grading import Answer, is_right, split_text
from tools.sapling.heldout import KINDS, heldout
from tools.sapling.kinds import arithmetic, facts, lists, recall, schemas, talk, tool_use, toolbox
from tools.sapling.mix import PLAIN, conversation
from tools.sapling.recipe import Recipe
from tools.sapling.words import NAMES, PLACES, THINGS, Draws, made_up_name, made_up_word

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a given city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_prompt_ends_inside_the_think_block_or_after_a_closed_one() -> None:
    """The model starts where the server's prompt ends, thinking or not."""
    messages = [{"role": "user", "content": "Hi"}]
    opened = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert prompt_text(messages) == opened
    assert prompt_text(messages, thinking=False) == opened.rstrip("\n") + "\n\n</think>\n\n"


def test_two_calls_are_spelled_as_the_template_spells_them_in_a_later_turn() -> None:
    """What is learnt as output is exactly what the template renders when the turn has become history."""
    calls = (Call("get_weather", {"city": "Lagos"}), Call("get_weather", {"city": "Oslo", "days": 2}))
    reply = Reply(reasoning="Two cities.", calls=calls)
    messages = [*user("Lagos and Oslo?"), message_of(reply, reasoning=True, raw_arguments=True)]
    history = prompt_text([*messages, *user("Thanks")], (WEATHER,))
    assert history.startswith(prompt_text(messages[:1], (WEATHER,)) + completion_text(reply, thinking=True))


def test_a_tool_is_rendered_with_its_keys_in_the_given_order() -> None:
    """Schemas reach the model as an OpenAI client sent them."""
    text = prompt_text([{"role": "user", "content": "?"}], (WEATHER,))
    assert '\n{"type": "function", "function": {"name": "get_weather", "description": "Get' in text


def test_segments_join_to_the_prompt_and_completion_of_the_last_turn() -> None:
    """Cutting into given and learnt parts loses nothing, whatever the conversation."""
    rng = Draws(1)
    for _ in range(200):
        talk_ = conversation(rng, Recipe().stages[0].mix)
        last = len(talk_.exchanges) - 1
        whole = prompt_text(messages_before(talk_, last), talk_.tools, thinking=talk_.thinking)
        whole += completion_text(talk_.exchanges[last].reply, thinking=talk_.thinking)
        assert "".join(text for text, _ in segments(talk_)) == whole


def test_only_replies_are_learnt() -> None:
    """A learnt part is one reply with its end marker; system, user and tool text never is."""
    rng = Draws(2)
    for _ in range(200):
        for text, learnt in segments(conversation(rng, Recipe().stages[0].mix)):
            if learnt:
                assert text.endswith("<|im_end|>")
                assert "<|im_start|>" not in text


def test_an_earlier_turn_that_the_template_would_change_is_refused() -> None:
    """Text that is learnt but would not come back the same is an error in the data."""
    odd = Exchange(asked=user("a"), reply=Reply(reasoning="r", content="\n\nb"))
    with pytest.raises(ValueError, match="template"):
        segments(Conversation(exchanges=(odd, odd)))


@given(st.integers(0, 999), st.integers(0, 999))
def test_working_of_sums_and_differences_ends_in_the_result(a: int, b: int) -> None:
    """The last line of the working is the result, with its sign and leading zeros."""
    assert int(arithmetic.sum_working(a, b).splitlines()[-1]) == a + b
    assert int(arithmetic.difference_working(a, b).splitlines()[-1]) == a - b


@given(st.integers(0, 99), st.integers(0, 99))
def test_every_equation_in_the_working_of_a_product_holds(a: int, b: int) -> None:
    """Each row says something true, and the last line is the product."""
    working = arithmetic.product_working(a, b)
    assert int(working.splitlines()[-1]) == a * b
    for left, right in re.findall(r"([0-9+*]+)=([0-9]+)", working):
        terms = [ast.literal_eval(str(int(term))) for term in re.split(r"[+*]", left)]
        result = terms[0] * terms[1] if "*" in left else sum(terms)
        assert result == int(right)


@given(st.integers(0, 999), st.integers(0, 999))
def test_a_sum_and_its_mirror_are_on_one_side_of_the_split(a: int, b: int) -> None:
    """Swapping the operands of a sum or product never turns a held-out pair into a trained one."""
    for operator in "+*":
        assert arithmetic.is_heldout(a, operator, b) == arithmetic.is_heldout(b, operator, a)


@pytest.mark.parametrize("operator", "+-*")
def test_operands_stay_on_their_side_of_the_split(operator: str) -> None:
    """Training draws no held-out pair and the evaluation draws nothing else."""
    rng = Draws(3)
    for _ in range(500):
        assert not arithmetic.is_heldout(*_pair(rng, operator, "train"))
        assert arithmetic.is_heldout(*_pair(rng, operator, "heldout"))


def _pair(rng: random.Random, operator: str, split: str) -> tuple[int, str, int]:
    a, b = arithmetic.operands(rng, operator, split)  # type: ignore[arg-type]
    return a, operator, b


def test_held_out_words_and_phrasings_are_in_no_training_list() -> None:
    """The split is by lists, and they share nothing."""
    for pool in (NAMES, PLACES, THINGS):
        assert not set(pool["train"]) & set(pool["heldout"])
    for phrasings in (*arithmetic.PHRASINGS.values(), *lists.PHRASINGS.values()):
        assert not set(phrasings["train"]) & set(phrasings["heldout"])
    for topic in facts.TOPICS.values():
        assert not set(topic.asked) & set(topic.asked_heldout)
    for matter in recall.MATTERS.values():
        assert not set(matter.said) & set(matter.said_heldout)
        assert not set(matter.asked) & set(matter.asked_heldout)
    for entry in talk.SMALL_TALK:
        assert not set(entry["asked"]) & set(entry["asked_heldout"])


def test_held_out_tools_share_no_name_topic_or_question_with_training() -> None:
    """A tool of the evaluation is new in its function's name, its subject and how it is asked for."""
    trained, new = toolbox.WRITTEN["train"], toolbox.WRITTEN["heldout"]
    for field in ("name", "topic"):
        assert not {getattr(tool, field) for tool in trained} & {getattr(tool, field) for tool in new}
    assert not {text for tool in trained for text in tool.asked} & {
        text for tool in new for text in tool.asked
    }
    assert not {tool.topic for tool in new} & set(toolbox.NOUNS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_held_out_set_of_a_kind_is_always_the_same(kind: str) -> None:
    """Offline and HTTP evaluation ask the same questions, with or without thinking."""
    first, again = heldout(kind, 20), heldout(kind, 20, thinking=False)
    assert [t.exchanges for t in first] == [t.exchanges for t in again]
    assert [t.tools for t in first] == [t.tools for t in again]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("thinking", [True, False])
def test_the_learnt_reply_passes_its_own_grading(kind: str, thinking: bool) -> None:
    """What is taught counts as right when a kind is graded, and an empty reply does not."""
    for talk_ in heldout(kind, 30, thinking=thinking):
        exchange = talk_.exchanges[-1]
        text = completion_text(exchange.reply, thinking=thinking).removesuffix("<|im_end|>")
        assert is_right(split_text(text, thinking=thinking, count_tokens=len), exchange.expect)
        assert not is_right(Answer(content=""), exchange.expect)


def test_a_think_block_that_never_closes_counts_as_open_and_wrong() -> None:
    """Cut-off reasoning is no answer."""
    answer = split_text("347 + 085\nones", thinking=True, count_tokens=len)
    assert not answer.closed
    assert not is_right(answer, {"number": 432})


def test_every_plain_kind_is_in_the_mix() -> None:
    """No kind can be forgotten in training."""
    for stage in Recipe().stages:
        assert set(PLAIN) | {"recall", "tools"} == set(stage.mix) - {"which", "clients"}


def test_made_up_words_are_never_the_evaluations() -> None:
    """Words joined from pieces could by chance be held-out ones; they are drawn again."""
    rng = Draws(5, variety=1.0, pieces=("air", "bi", "ke", "Ra", "vi", "tide"))
    words = {made_up_word(rng) for _ in range(500)} | {made_up_name(rng).lower() for _ in range(500)}
    assert len(words) > 20
    assert not words & {"air", "bike", "tide", "ravi"}


def test_draws_of_one_seed_repeat() -> None:
    """A training step's data depend on its seed alone."""
    first, again = ([made_up_word(rng) for _ in range(9)] for rng in (_draws(), _draws()))
    assert first == again
    assert first != [made_up_word(Draws("8 0", 0.5, ("ab", "cd"))) for _ in range(9)]


def _draws() -> Draws:
    return Draws("7 0", 0.5, ("ab", "cd"))


def test_a_schema_of_any_style_states_the_same_function() -> None:
    """Generators write other keys in another order; the name and the parameters are the tool's."""
    rng = Draws(11)
    orders = set()
    for _ in range(200):
        tool = toolbox.draw(rng, "train", 1)[0]
        function = schemas.schema(rng, tool, varied=True)["function"]
        assert function["name"] == tool.name
        assert list(function["parameters"]["properties"]) == [parameter.name for parameter in tool.parameters]
        orders.add(next(iter(function["parameters"])))
    assert orders == {"type", "properties"}


def test_a_varied_tool_is_still_asked_for_by_its_topic_and_with_its_parameters() -> None:
    """Another noun goes through name and sentences alike; every placeholder is a parameter's."""
    rng = Draws(12)
    for tool in toolbox.WRITTEN["train"]:
        other = toolbox.varied(rng, tool)
        names = {parameter.name for parameter in other.parameters}
        assert len(names) == len(tool.parameters)
        for text in other.asked:
            assert set(re.findall(r"{(\w+)}", text)) <= names
        voiced = [new for new, old in zip(other.asked, tool.asked, strict=True) if tool.topic in old.lower()]
        assert all(other.topic in text.lower() for text in voiced)


def test_which_tool_is_answered_by_a_name_or_by_none() -> None:
    """The drill's reply is one of the tools' names, or that none fits."""
    rng = Draws(13)
    tools = toolbox.draw(rng, "train", 3)
    answers = {tool_use.which(rng, tools).reply.content for _ in range(80)}
    assert answers == {tool.name for tool in tools} | {"None of my tools."}


def test_a_deed_is_asked_for_by_its_verb_and_never_by_one_of_the_evaluations() -> None:
    """Its verb is in its name and in its question; a text comes after what it is for."""
    rng = Draws(14)
    deeds = [toolbox.deed(rng) for _ in range(300)]
    for tool in deeds:
        assert tool.topic in tool.name
        assert tool.topic in tool.asked[0].lower()
        assert re.findall(r"{(\w+)}", tool.asked[0]) == [parameter.name for parameter in tool.parameters]
    assert {len(tool.parameters) for tool in deeds} == {1, 2}
    assert not {tool.topic for tool in deeds} & {tool.topic for tool in toolbox.WRITTEN["heldout"]}


def test_the_reasoning_says_the_topic_as_the_question_does() -> None:
    """A capital at the start of a sentence is kept, also when the sentence is the second of two."""
    rng = Draws(15)
    reef, boat = (
        toolbox.Tool(name, "", (toolbox.Parameter("where", "place"),), (text,), topic)
        for name, text, topic in (
            ("fetch_reef", "Reef at {where}?", "reef"),
            ("a_boat", "A boat in {where}.", "boat"),
        )
    )
    for tools in ([reef, boat], [boat, reef]):
        for _ in range(40):
            exchange = tool_use.called(rng, "train", [tool_use.request(rng, "train", tool) for tool in tools])
            asked = exchange.asked[0]["content"]
            topics = re.findall("asks for (.*)", exchange.reply.reasoning)
            assert [topic.lower() for topic in topics] == [tool.topic for tool in tools]
            assert all(re.search(rf"\b{topic}\b", asked) for topic in topics)
