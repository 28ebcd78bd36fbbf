"""A turn: from an Ask to a job, and from pieces to events."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import pytest
from maple_plugins.events import ContentDelta, ReasoningDelta
from maple_plugins.parsers.maple_tools import MapleToolParser
from maple_plugins.parsers.think import ThinkParser
from maple_protocols.adapter import Done, NumberedCall, TurnEvent
from maple_protocols.ask import Ask, Conversation, Message, RawText, SamplingWish

from maple.choices import AnyTurn
from maple.engine.admission import QueueLimits
from maple.engine.api import Job, Ticket
from maple.engine.errors import ModelLoading, PromptTooLong
from maple.prompt.encode import PromptEncoder
from maple.prompt.pool import PromptPool
from maple.scripted.engine import ScriptedEngine, scripted_served
from maple.scripted.script import Recording
from maple.turn_parsers import ParserPair
from maple.turns import TurnDefaults, Turns

PARSERS = ParserPair(reasoning=ThinkParser, tools=MapleToolParser)
DEFAULTS = TurnDefaults(
    model_id="maple-preview",
    max_new_tokens=100,
    max_new_tokens_limit=200,
    max_prompt_tokens=1000,
    temperature=None,
    top_p=None,
    top_k=None,
    enable_thinking=True,
    request_timeout=0.0,
)
HI = Conversation(messages=(Message(role="user", content="hi"),))
PIECES = ("We", " add.", "</think>", "\n\n", "391")


class Listening(ScriptedEngine):
    """The scripted engine, which also tells what jobs it was given."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[Job] = []

    def submit(self, job: Job) -> Ticket:
        self.asked.append(job)
        return super().submit(job)


def run(
    folder: pathlib.Path,
    body: Callable[[Turns, Listening], Awaitable[None]],
    *,
    pieces: tuple[str, ...] = PIECES,
    finish: str = "stop",
    stored: Mapping[str, float] | None = None,
    window: int = 1000,
    **defaults: Any,
) -> None:
    """Run ``body`` with turns over the golden tokenizer and one recording."""

    async def main() -> None:
        served = attrs.evolve(scripted_served(folder, max_model_len=window), generation_defaults=stored or {})
        recording = Recording(pieces=pieces, finish=finish)  # type: ignore[arg-type]
        engine = Listening([recording], served=served, limits=QueueLimits(slots=4))
        turns = Turns(engine, PARSERS, attrs.evolve(DEFAULTS, **defaults))
        engine.start()
        turns.prompts = PromptPool(PromptEncoder(folder))
        try:
            await body(turns, engine)
        finally:
            turns.prompts.close()
            await engine.close()

    asyncio.run(main())


@pytest.fixture
def folder(golden_folder: pathlib.Path) -> pathlib.Path:
    return golden_folder / "mlx-2bit"


def _status(turns: Turns) -> str:
    """Asked anew each time, whatever it was before."""
    return turns.status


async def open_turn(turns: Turns, ask: Ask) -> AnyTurn:
    return await turns.open(ask, owner="", request_id="r")


async def events_of(turn: AnyTurn) -> list[TurnEvent]:
    return [event async for event in turn.events()]


@pytest.mark.parametrize(
    ("wish", "own", "stored", "expected"),
    [
        (None, None, {}, 0.6),
        (None, None, {"temperature": 0.1}, 0.1),
        (None, 0.9, {"temperature": 0.1}, 0.9),
        (0.0, 0.9, {"temperature": 0.1}, 0.0),
    ],
)
def test_sampling_defaults_yield_in_order(
    folder: pathlib.Path, wish: float | None, own: float | None, stored: dict[str, float], expected: float
) -> None:
    """The request's temperature wins over the setting's, that over the checkpoint's, that over 0.6."""

    async def body(turns: Turns, engine: Listening) -> None:
        await events_of(await open_turn(turns, Ask(prompt=HI, sampling=SamplingWish(temperature=wish))))
        assert engine.asked[0].sampling.temperature == expected

    run(folder, body, stored=stored, temperature=own)


def test_top_k_minus_one_in_the_settings_is_off(folder: pathlib.Path) -> None:
    """−1 and 0 both turn top-k off."""

    async def body(turns: Turns, engine: Listening) -> None:
        await events_of(await open_turn(turns, Ask(prompt=HI)))
        assert engine.asked[0].sampling.top_k == 0
        assert engine.asked[0].sampling.top_p == 0.95

    run(folder, body, top_k=-1)


@pytest.mark.parametrize(
    ("wanted", "window", "expected"), [(None, 1000, 100), (150, 1000, 150), (10**9, 1000, 200), (150, 40, 23)]
)
def test_new_tokens_are_lowered_to_what_fits(
    folder: pathlib.Path, wanted: int | None, window: int, expected: int
) -> None:
    """max_tokens defaults to the setting; it is lowered to the limit and to what is left of the window."""

    async def body(turns: Turns, engine: Listening) -> None:
        turn = await open_turn(turns, Ask(prompt=HI, max_tokens=wanted))
        await events_of(turn)
        assert len(engine.asked[0].prompt_ids) == 17
        assert engine.asked[0].max_tokens == expected

    run(folder, body, window=window)


@pytest.mark.parametrize(("window", "most"), [(17, 1000), (1000, 16)])
def test_a_prompt_that_leaves_no_room_is_refused(folder: pathlib.Path, window: int, most: int) -> None:
    """A prompt that fills the window, or is over the server's limit, is refused with both counts."""

    async def body(turns: Turns, engine: Listening) -> None:
        with pytest.raises(PromptTooLong) as caught:
            await open_turn(turns, Ask(prompt=HI))
        assert (caught.value.limit, caught.value.got) == (16, 17)
        assert engine.asked == []

    run(folder, body, window=window, max_prompt_tokens=most)


def test_nothing_is_opened_before_the_tokenizer_is_there(folder: pathlib.Path) -> None:
    """Until weights and tokenizer are loaded, the status is loading and a turn is refused so."""

    async def body(turns: Turns, engine: Listening) -> None:
        pool, turns.prompts = turns.prompts, None
        assert _status(turns) == "loading"
        with pytest.raises(ModelLoading):
            await open_turn(turns, Ask(prompt=HI))
        turns.prompts = pool
        assert _status(turns) == "ok"
        turns.fail("tokenizer.json is broken")
        assert (turns.status, turns.error) == ("error", "tokenizer.json is broken")

    run(folder, body)


def test_reasoning_ids_are_counted_up_to_the_closing_marker(folder: pathlib.Path) -> None:
    """reasoning_tokens counts ids inside the block; the marker's own id is not one of them."""

    async def body(turns: Turns, engine: Listening) -> None:
        turn = await open_turn(turns, Ask(prompt=HI))
        *deltas, done = await events_of(turn)
        assert deltas == [ReasoningDelta("We"), ReasoningDelta(" add."), ContentDelta("391")]
        assert isinstance(done, Done)
        assert (done.finish, done.usage.reasoning_tokens, done.usage.completion_tokens) == ("stop", 2, 5)

    run(folder, body)


@pytest.mark.parametrize(("finish", "expected"), [("stop", "tool_calls"), ("length", "length")])
def test_a_limit_outweighs_a_call(folder: pathlib.Path, finish: str, expected: str) -> None:
    """The finish reason is length if a limit cut the answer, else tool_calls if there is a call."""
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'

    async def body(turns: Turns, engine: Listening) -> None:
        *calls, done = await events_of(await open_turn(turns, Ask(prompt=HI)))
        assert isinstance(done, Done)
        assert done.finish == expected
        assert [(each.index, each.name) for each in calls if isinstance(each, NumberedCall)] == [
            (0, "f"),
            (1, "f"),
        ]
        assert len({each.id for each in calls if isinstance(each, NumberedCall)}) == 2

    run(folder, body, pieces=("</think>", call, call), finish=finish)


def test_a_raw_prompt_is_answered_unparsed(folder: pathlib.Path) -> None:
    """Completions get the text as it is: markers, leading newlines and all."""

    async def body(turns: Turns, engine: Listening) -> None:
        *deltas, done = await events_of(await open_turn(turns, Ask(prompt=RawText("x"))))
        assert "".join(d.text for d in deltas if isinstance(d, ContentDelta)) == "".join(PIECES)
        assert isinstance(done, Done)
        assert done.usage.reasoning_tokens == 0

    run(folder, body)
