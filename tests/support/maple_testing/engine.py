"""Jobs for engines, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maple.engine.api import Finish, Job, Piece, Sampling, Ticket


def never() -> bool:
    """What a loader asks to learn whether it has been cancelled."""
    return False


def quiet(_: object) -> None:
    """A reporter of progress that nobody reads."""


def greedy_job(prompt_ids: Sequence[int] = (5, 17, 300), **changes: Any) -> Job:
    """A job of up to eight ids, each the likeliest, where nothing else is said."""
    fields: dict[str, Any] = {"max_tokens": 8, "sampling": Sampling(temperature=0), **changes}
    return Job(request_id="request", prompt_ids=tuple(prompt_ids), **fields)


async def collect(ticket: Ticket) -> tuple[str, Finish]:
    """The whole text and the end of a job's answer."""
    *pieces, finish = [item async for item in ticket]
    assert isinstance(finish, Finish)
    return "".join(piece.text for piece in pieces if isinstance(piece, Piece)), finish
