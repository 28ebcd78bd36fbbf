"""Slots by turns, and slots that come back whatever fails."""

from __future__ import annotations

import asyncio
import itertools
import os
import pathlib
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maple.engine.admission import Admission, QueueLimits
from maple.engine.api import Finish, Job, Sampling, Ticket
from maple.engine.errors import EngineOverloaded, GenerationFailed, SessionBusy, ShuttingDown
from maple.engine.file_threads import FileThreads
from maple.engine.kv.cache import Wait
from maple.engine.session_files import SessionFiles
from maple.engine.ticket import JobTicket
from maple.engine.worker import ThreadedEngine

CASES = int(os.environ.get("STRESS_CASES", "60"))


def job(name: str, owner: str = "", **changes: Any) -> Job:
    fields = {"prompt_ids": (5, 6, 7), "max_tokens": 2, "sampling": Sampling(temperature=0), **changes}
    return Job(request_id=name, owner=owner, **fields)


async def finish(ticket: Ticket) -> Finish:
    *_, last = [item async for item in ticket]
    assert isinstance(last, Finish)
    return last


@pytest.fixture
def running(load_toy: Any, toy_runner: Any) -> Any:
    """A context manager: an engine over a toy model, closed at the end."""

    @asynccontextmanager
    async def run(
        runner: Any = None, files: SessionFiles | None = None, **limits: Any
    ) -> AsyncIterator[ThreadedEngine]:
        loaded = load_toy(runner or toy_runner())
        engine = ThreadedEngine(lambda _: loaded, limits=QueueLimits(**limits), session_files=files)
        engine.start()
        await engine.loaded()
        try:
            yield engine
        finally:
            await engine.close()

    return run


@settings(max_examples=CASES, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40),
    st.integers(1, 3),
    st.integers(0, 6),
)
def test_keys_take_turns_and_each_keys_jobs_keep_their_order(
    arrivals: list[tuple[str, bool]], slots: int, depth: int
) -> None:
    """Between two turns of a key that waits every other waiting key has one; no key's queue holds another's up."""

    async def play() -> None:
        started: list[JobTicket] = []
        admission = Admission(QueueLimits(slots=slots, depth=depth), start=started.append)
        waiting: dict[str, list[str]] = {"a": [], "b": [], "c": []}
        for number, (owner, free) in enumerate(arrivals):
            name, before = f"{number:03}", len(started)
            if len(waiting[owner]) >= depth and admission.running >= slots:
                with pytest.raises(EngineOverloaded):
                    admission.submit(job(name, owner))
            else:
                admission.submit(job(name, owner))
                if len(started) == before:
                    waiting[owner].append(name)
            assert admission.waiting == sum(map(len, waiting.values()))
            if free and started:
                before = len(started)
                admission.release(started[0])
                for ticket in started[before:]:
                    assert waiting[ticket.job.owner].pop(0) == ticket.job.request_id
                started.pop(0)
        expected = [one.request_id for one in admission.queue()]
        order = []
        while started:
            before = len(started)
            admission.release(started[0])
            order += started[before:]
            started.pop(0)
        assert [ticket.job.request_id for ticket in order] == expected
        for owner in "abc":
            turns = [at for at, ticket in enumerate(order) if ticket.job.owner == owner]
            for first, second in itertools.pairwise(turns):
                between = [order[at].job.owner for at in range(first + 1, second)]
                assert len(between) == len(set(between))
        assert await admission.drain(0)

    asyncio.run(play())


async def test_one_keys_hundred_jobs_leave_another_its_turn(running: Any) -> None:
    """The second key's job is the next to start, and its queue is its own."""
    async with running(slots=1, depth=100) as engine:
        many = [engine.submit(job(str(n), "many")) for n in range(101)]
        with pytest.raises(EngineOverloaded):
            engine.submit(job("101", "many"))
        one = engine.submit(job("one", "other"))
        assert [queued.request_id for queued in engine.stats().queue[:3]] == ["1", "one", "2"]
        ended: list[str] = []

        async def note(ticket: Ticket, name: str) -> None:
            await finish(ticket)
            ended.append(name)

        await asyncio.gather(*(note(t, str(n)) for n, t in enumerate(many)), note(one, "one"))
        assert ended.index("one") <= 2


async def test_a_start_that_fails_gives_its_slot_back() -> None:
    """Whoever waits gets the slot, and the failed job is told."""
    started: list[JobTicket] = []

    def start(ticket: JobTicket) -> None:
        if ticket.job.request_id == "bad":
            raise OSError("no such luck")
        started.append(ticket)

    admission = Admission(QueueLimits(slots=1), start=start)
    first, bad, last = (admission.submit(job(name)) for name in ("first", "bad", "last"))
    admission.release(first)
    assert started == [first, last]
    with pytest.raises(GenerationFailed):
        await finish(bad)
    admission.release(last)
    assert await admission.drain(0)


async def test_a_session_folder_that_cannot_be_read_costs_no_slot(
    running: Any, tmp_path: pathlib.Path
) -> None:
    """An OSError is "not saved": the job runs, and its end and the next job's are delivered."""
    files = SessionFiles(tmp_path / ("x" * 300), max_bytes=1 << 20)  # any look at it is ENAMETOOLONG
    assert not files.exists("", "s")
    async with running(files=files, slots=1) as engine:
        tickets = [engine.submit(job(str(n), session_id="s")) for n in range(3)]
        for ticket in tickets:
            assert (await finish(ticket)).completion_tokens == 2
        assert (engine.stats().running, engine.stats().waiting) == (0, 0)


async def test_waiting_for_memory_is_waiting_and_ends(running: Any, endless_runner: Any) -> None:
    """A job that has a slot but no memory counts as waiting, and is overloaded after the queue's timeout."""

    class NoRoom(endless_runner):  # type: ignore[misc]
        def open(self, owner: str, prompt_ids: Any, longest: int = 0, *, reuse: bool = True) -> Any:
            return Wait.MEMORY if self.opened else super().open(owner, prompt_ids, longest)

    async with running(NoRoom(), slots=4, timeout=2) as engine:
        first = engine.submit(job("first", max_tokens=10**6))
        await first.admitted()
        second = engine.submit(job("second"))
        refused = asyncio.ensure_future(second.admitted())
        waited = False
        while not refused.done():
            waited |= [queued.request_id for queued in engine.stats().queue] == ["second"]
            await asyncio.sleep(0)
        assert waited
        assert isinstance(error := refused.exception(), EngineOverloaded)
        assert error.reason == "queue_timeout"
        first.cancel()
        assert await engine.drain(60)


async def test_hung_files_hold_up_neither_others_nor_the_end() -> None:
    """One key's calls that hang leave threads for others, and closing waits for none of them."""
    threads, release = FileThreads(most=4), threading.Event()
    stuck = [asyncio.ensure_future(threads.run("one", release.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(SessionBusy):
        await threads.run("one", lambda: 1)
    assert await threads.run("two", lambda: 2) == 2
    threads.close()
    results = await asyncio.gather(*stuck, return_exceptions=True)
    assert [type(result) for result in results] == [ShuttingDown] * 2
    release.set()


async def test_who_waits_costs_a_step_nothing() -> None:
    """A job that ends and one that comes are the same work with twice as many waiting: they are not walked."""

    def work(waiting: int) -> int:
        started: list[JobTicket] = []
        admission = Admission(QueueLimits(slots=1, depth=1000), start=started.append)
        for number in range(waiting):
            admission.submit(job(str(number), owner=f"key {number % 10}"))
        calls: list[str] = []
        sys.setprofile(lambda _frame, event, _: calls.append(event))
        admission.release(started[0])
        admission.submit(job("another"))
        sys.setprofile(None)
        admission.close()
        return len(calls)

    assert work(400) == work(200)
