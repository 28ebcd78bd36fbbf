"""The engine that plays recordings behaves as one with a model."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from maple_testing.engine import collect
from maple_testing.guard import HANG_GUARD

from maple.engine.admission import QueueLimits
from maple.engine.api import Finish, Job, Piece, Sampling, Served
from maple.engine.errors import EngineOverloaded, GenerationFailed, JobCancelled, ModelLoading, ShuttingDown
from maple.scripted.engine import ScriptedEngine, scripted_served
from maple.scripted.script import Recording

GOLDEN = pathlib.Path(__file__).parents[1] / "data" / "golden" / "mlx-2bit"
FOREVER = 4000 * HANG_GUARD  # milliseconds: a delay no test waits for
SLOW = Recording(match="slow", pieces=("a",), delay_ms=FOREVER)


def job(subject: str = "", *, max_tokens: int = 1_000, stop: Sequence[str] = (), timeout: float = 0.0) -> Job:
    return Job(
        request_id="r",
        prompt_ids=(5, 17, 300),
        max_tokens=max_tokens,
        sampling=Sampling(),
        stop=tuple(stop),
        subject=subject,
        timeout=timeout,
    )


def served() -> Served:
    return scripted_served(GOLDEN)


@asynccontextmanager
async def playing(*recordings: Recording, **limits: float) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(recordings, served=served(), limits=QueueLimits(**limits))  # type: ignore[arg-type]
    engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def answer(engine: ScriptedEngine, asked: Job) -> tuple[str, Finish]:
    return await collect(engine.submit(asked))


async def test_a_folder_is_described_by_its_tokenizer() -> None:
    """The vocabulary counts the tokenizer's ids; the folder is the one that renders prompts."""
    assert served().vocabulary == 512
    assert served().folder == GOLDEN


async def test_the_first_recording_that_matches_answers() -> None:
    """Matching looks for the text inside the subject, in the script's order; null matches all."""
    async with playing(
        Recording(match="maple", pieces=("tree",)),
        Recording(match="maple syrup", pieces=("never",)),
        Recording(match=None, pieces=("any",)),
    ) as engine:
        assert (await answer(engine, job("is maple syrup sweet?")))[0] == "tree"
        assert (await answer(engine, job("Maple?")))[0] == "any"


async def test_a_token_is_a_piece() -> None:
    """Finish and the counters count the prompt's ids and one token a piece, empty pieces included."""
    async with playing(Recording(pieces=("a", "", "🍁b"))) as engine:
        text, finish = await answer(engine, job())
        assert text == "a🍁b"
        assert (finish.reason, finish.prompt_tokens, finish.completion_tokens) == ("stop", 3, 3)
        stats = engine.stats()
        assert (stats.prompt_tokens, stats.generation_tokens, stats.running, stats.waiting) == (3, 3, 0, 0)


async def test_pieces_arrive_as_recorded() -> None:
    """Every piece is delivered as it stands in the script, with the offset at which it begins."""
    pieces = tuple(f"{n} " for n in range(50))
    async with playing(Recording(pieces=pieces)) as engine:
        items = [item async for item in engine.submit(job())]
        assert tuple(item.text for item in items[:-1] if isinstance(item, Piece)) == pieces
        assert items[11] == Piece("11 ", (len("".join(pieces[:11])),))


async def test_max_tokens_cuts_as_length() -> None:
    """A limit below the recording's pieces ends it as length; one that all pieces fit under does not."""
    async with playing(Recording(pieces=("a", "b", "c"))) as engine:
        text, finish = await answer(engine, job(max_tokens=2))
        assert (text, finish.reason, finish.completion_tokens) == ("ab", "length", 2)
        assert (await answer(engine, job(max_tokens=3)))[1].reason == "stop"


async def test_the_recorded_finish_is_played() -> None:
    """A recording can end at the length limit, and one without pieces just ends."""
    async with playing(Recording(match="x", pieces=(), finish="length"), Recording(pieces=())) as engine:
        assert (await answer(engine, job("x")))[1].reason == "length"
        text, finish = await answer(engine, job())
        assert (text, finish.reason, finish.completion_tokens) == ("", "stop", 0)


async def test_stop_strings_cut_across_pieces() -> None:
    """The text ends before the stop string, no prefix of it is sent, and only the pieces played count."""
    async with playing(Recording(pieces=("ab", "c", "d", "e", "f"), finish="error")) as engine:
        ticket = engine.submit(job(stop=["cde"]))
        items = [item async for item in ticket]
        assert [item.text for item in items if isinstance(item, Piece)] == ["ab", "", "", ""]
        assert isinstance(items[-1], Finish)
        assert (items[-1].reason, items[-1].completion_tokens) == ("stop", 4)


async def test_a_held_prefix_is_sent_at_the_end() -> None:
    """Text held for a stop string that never completes is not lost, and the recorded finish stands."""
    async with playing(Recording(pieces=("ab", "c"), finish="length")) as engine:
        text, finish = await answer(engine, job(stop=["cd"]))
        assert (text, finish.reason) == ("abc", "length")


async def test_an_error_comes_after_the_pieces() -> None:
    """A recorded error is raised as GenerationFailed when all pieces have been read, and the slot is free."""
    async with playing(Recording(pieces=("a", "b"), finish="error")) as engine:
        items = aiter(engine.submit(job()))
        assert [await anext(items), await anext(items)] == [Piece("a", (0,)), Piece("b", (1,))]
        with pytest.raises(GenerationFailed):
            await anext(items)
        assert engine.stats().running == 0


async def test_a_job_without_a_recording_fails_before_it_takes_a_slot() -> None:
    """Nothing matching is known at once: waiting for admission raises it already."""
    async with playing(Recording(match="maple", pieces=("a",))) as engine:
        with pytest.raises(GenerationFailed):
            await engine.submit(job("oak")).admitted()
        with pytest.raises(GenerationFailed):
            await answer(engine, job("oak"))


async def test_submitting_before_the_start_is_loading() -> None:
    """Until it is started the engine says it is loading."""
    engine = ScriptedEngine([Recording(pieces=())], served=served(), limits=QueueLimits())
    assert (engine.status, engine.served) == ("loading", None)
    with pytest.raises(ModelLoading):
        engine.submit(job())
    engine.start()
    await engine.loaded()
    assert (engine.status, engine.error) == ("ok", None)
    await engine.close()


async def test_one_job_runs_and_the_others_wait_in_order() -> None:
    """With one slot, jobs are admitted one after another, in the order in which they came."""
    async with playing(
        Recording(match="slow", pieces=("a",), delay_ms=FOREVER), Recording(pieces=("b",))
    ) as engine:
        first = engine.submit(job("slow"))
        waiters = [engine.submit(job()) for _ in range(3)]
        assert (engine.stats().running, engine.stats().waiting) == (1, 3)
        order: list[int] = []

        async def admitted(number: int) -> None:
            await waiters[number].admitted()
            order.append(number)
            assert (await collect(waiters[number]))[0] == "b"

        first.cancel()
        await asyncio.gather(*(admitted(number) for number in (2, 1, 0)))
        assert order == [0, 1, 2]


async def test_a_full_queue_refuses_at_once() -> None:
    """With the slots taken and the queue full the next job raises; with depth 0 a free slot still serves."""
    async with playing(Recording(pieces=("a",), delay_ms=FOREVER), slots=2, depth=1) as engine:
        tickets = [engine.submit(job()) for _ in range(3)]
        with pytest.raises(EngineOverloaded) as caught:
            engine.submit(job())
        assert caught.value.reason == "queue_full"
        tickets[2].cancel()
        engine.submit(job())
    async with playing(Recording(pieces=("a",)), slots=1, depth=0) as engine:
        for _ in range(3):
            assert (await answer(engine, job()))[0] == "a"
        engine.submit(job())
        with pytest.raises(EngineOverloaded):
            engine.submit(job())


async def test_waiting_too_long_is_an_error_for_the_waiter_alone() -> None:
    """A queue timeout raises EngineOverloaded to the waiter; what runs goes on."""
    async with playing(Recording(pieces=("a",), delay_ms=FOREVER), timeout=0.01) as engine:
        running = engine.submit(job())
        waiter = engine.submit(job())
        await running.admitted()
        with pytest.raises(EngineOverloaded) as caught:
            await waiter.admitted()
        assert caught.value.reason == "queue_timeout"
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.cancelled) == (1, 0, 0)


async def test_cancelling_wakes_the_reader_frees_the_slot_and_counts_once() -> None:
    """A cancelled job's reader gets JobCancelled; a second cancel is not counted."""
    async with playing(Recording(pieces=("a", "b"), delay_ms=FOREVER)) as engine:
        running, waiter = engine.submit(job()), engine.submit(job())
        reader = asyncio.ensure_future(collect(running))
        await running.admitted()
        waiter.cancel()
        assert engine.stats().waiting == 0
        running.cancel()
        running.cancel()
        with pytest.raises(JobCancelled):
            await reader
        with pytest.raises(JobCancelled):
            await waiter.admitted()
        assert (engine.stats().running, engine.stats().cancelled) == (0, 2)


async def test_nothing_is_delivered_after_a_cancel() -> None:
    """Pieces not yet read are dropped."""
    async with playing(Recording(match="x", pieces=("a",) * 9 + ("b",) * 9), Recording(pieces=())) as engine:
        ticket = engine.submit(job("x"))
        assert await anext(aiter(ticket)) == Piece("a", (0,))
        ticket.cancel()
        with pytest.raises(JobCancelled):
            await anext(aiter(ticket))


async def test_cancelling_what_has_ended_changes_nothing() -> None:
    """A ticket that is finished can be cancelled without being counted."""
    async with playing(Recording(pieces=("a",))) as engine:
        ticket = engine.submit(job())
        await collect(ticket)
        ticket.cancel()
        assert engine.stats().cancelled == 0
        with pytest.raises(StopAsyncIteration):
            await anext(aiter(ticket))


async def test_an_impatient_wait_for_admission_can_be_repeated() -> None:
    """Giving up on ``admitted`` (to send a ping, say) harms neither the job nor a second wait."""
    async with playing(
        Recording(match="slow", pieces=("a",), delay_ms=FOREVER), Recording(pieces=("b",))
    ) as engine:
        running, waiter = engine.submit(job("slow")), engine.submit(job())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiter.admitted(), 0.001)
        running.cancel()
        await waiter.admitted()
        assert (await collect(waiter))[0] == "b"


async def test_the_jobs_timeout_ends_it_as_length() -> None:
    """A generation that outlives its timeout ends as length with what was played."""
    async with playing(Recording(pieces=("a", "b"), delay_ms=FOREVER)) as engine:
        text, finish = await answer(engine, job(timeout=0.01))
        assert (text, finish.reason, finish.completion_tokens) == ("", "length", 0)


async def test_delays_are_kept() -> None:
    """Each piece comes after its delay."""
    async with playing(Recording(pieces=("a", "b", "c"), delay_ms=10)) as engine:
        started = time.monotonic()
        _, finish = await answer(engine, job())
        assert time.monotonic() - started >= 0.03
        assert finish.decode_seconds >= 0.03


async def test_a_drain_finishes_what_runs_and_what_waits() -> None:
    """Draining refuses new jobs and returns True when the last of the others has ended."""
    async with playing(Recording(pieces=("a",), delay_ms=1)) as engine:
        tickets = [engine.submit(job()) for _ in range(3)]
        drained = asyncio.ensure_future(engine.drain(30))
        texts = [(await collect(ticket))[0] for ticket in tickets]
        assert texts == ["a", "a", "a"]
        assert await drained
        assert engine.draining
        with pytest.raises(ShuttingDown):
            engine.submit(job())


async def test_a_drain_that_takes_too_long_evicts_the_rest() -> None:
    """After the drain's timeout running and waiting jobs raise ShuttingDown and the slots are free."""
    async with playing(Recording(pieces=("a",), delay_ms=FOREVER)) as engine:
        running, waiter = engine.submit(job()), engine.submit(job())
        assert not await engine.drain(0.01)
        for ticket in (running, waiter):
            with pytest.raises(ShuttingDown):
                await collect(ticket)
        await engine.close()
        assert (engine.stats().running, engine.stats().waiting) == (0, 0)


async def test_draining_an_idle_engine_returns_at_once() -> None:
    """Nothing to wait for is True even with no time to wait."""
    async with playing(Recording(pieces=())) as engine:
        assert await engine.drain(30)


async def test_sixty_four_streams_share_the_loop_fairly() -> None:
    """64 streams at once move together."""
    pieces = tuple(f"{n} " for n in range(500))
    async with playing(Recording(pieces=pieces), slots=64) as engine:
        progress = [0] * 64
        spread = 0

        async def read(number: int) -> None:
            nonlocal spread
            async for _ in engine.submit(job()):
                progress[number] += 1
                if number == 0:
                    spread = max(spread, max(progress) - min(progress))

        await asyncio.gather(*(read(number) for number in range(64)))
        assert progress == [500 + 1] * 64
        assert spread <= 32
