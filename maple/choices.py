"""Several answers to one request: one turn each, told together."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import cast

import attrs
from maple_protocols.adapter import Done, OfChoice, TurnEvent, Usage
from maple_protocols.timings import Progress

from maple.engine.api import Finish, Job
from maple.engine.errors import EngineError
from maple.turn import Turn
from maple.turn_times import spent

_AHEAD = 16
"""Events that may wait for a slow client before the turns do."""


def sibling(job: Job, choice: int, *, first: bool) -> Job:
    """The job of a further choice: it draws as its own, and is of the same request unless it is the ``first``.

    A session goes on from its first choice.
    """
    return attrs.evolve(
        job,
        sampling=attrs.evolve(job.sampling, choice=choice),
        sibling=not first,
        session_id=job.session_id if first else None,
    )


class Choices:
    """The turns of one request, prompt by prompt ``each`` of them, as one turn. Iterate it once."""

    def __init__(self, turns: Sequence[Turn], each: int) -> None:
        self.identity = turns[0].identity
        self.finish: Finish | None = None
        """The account of them all, once they are done: prompts count once."""
        self._turns = turns
        self._each = each

    @property
    def reasoning_tokens(self) -> int:
        """Those of all."""
        return sum(turn.reasoning_tokens for turn in self._turns)

    async def admitted(self) -> None:
        """Return when the first has its slot; the others run as slots come free."""
        await self._turns[0].admitted()

    def progress(self) -> Progress:
        """How far the first prompt is."""
        return self._turns[0].progress()

    def cancel(self) -> None:
        """Drop them all within one token."""
        for turn in self._turns:
            turn.cancel()

    @property
    def thinking(self) -> bool:
        """Whether any of them is."""
        return any(turn.thinking for turn in self._turns)

    def answer_now(self) -> None:
        """Close the reasoning block of each that is in one."""
        for turn in self._turns:
            turn.answer_now()

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """Yield each turn's events as they come, its own Done the last of them; then the Done of all."""
        queue: asyncio.Queue[OfChoice | EngineError] = asyncio.Queue(_AHEAD)
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(_pump(index, turn, queue)) for index, turn in enumerate(self._turns)]
        left = len(tasks)
        try:
            while left:
                event = await queue.get()
                if isinstance(event, EngineError):
                    raise event
                left -= isinstance(event.event, Done)
                yield cast("TurnEvent", event)  # its adapter has asked for several
            yield self._done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self) -> Done:
        ends = [turn.finish for turn in self._turns if turn.finish is not None]
        firsts = ends[:: self._each]
        finish = attrs.evolve(
            ends[0],
            prompt_tokens=sum(one.prompt_tokens for one in firsts),
            cached_tokens=sum(one.cached_tokens for one in firsts),
            completion_tokens=sum(one.completion_tokens for one in ends),
            decode_seconds=max(one.decode_seconds for one in ends),
        )
        self.finish = finish
        usage = Usage(
            prompt_tokens=finish.prompt_tokens,
            completion_tokens=finish.completion_tokens,
            cached_tokens=finish.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )
        return Done(finish=finish.reason, usage=usage, at=int(time.time()), timings=spent(finish))


AnyTurn = Turn | Choices
"""What a request is answered by."""


async def _pump(index: int, turn: Turn, queue: asyncio.Queue[OfChoice | EngineError]) -> None:
    try:
        async with contextlib.aclosing(turn.events()) as events:
            async for event in events:
                await queue.put(OfChoice(index, event))
    except EngineError as error:
        await queue.put(error)
