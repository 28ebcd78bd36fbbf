"""One front over replicas in this process: routing, order, cancellation, and what becomes of a lost replica's jobs."""

from __future__ import annotations

import asyncio
import pathlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import tokenizers
from maple_testing.engine import collect, greedy_job
from maple_testing.fleet import LocalFleet
from maple_testing.guard import HANG_GUARD, comes_about, run_guarded

from maple.choose_engine import build_engine
from maple.cluster.engine import RayEngine
from maple.cluster.messages import FleetFailed
from maple.cluster.replica import ReplicaHost
from maple.engine.admission import QueueLimits
from maple.engine.api import Finish, Job, Piece, Sampling
from maple.engine.errors import (
    EngineOverloaded,
    ModelFailed,
    ModelLoading,
    ReplicaLost,
    SessionElsewhere,
    SessionUnknown,
    ShuttingDown,
)
from maple.engine.thinking import ThinkingLimits
from maple.settings import Settings

SLOTS = 2
LONG = 4000  # ids that no test waits for


def host(name: str, **settings_of_one: Any) -> ReplicaHost:
    settings = Settings(
        demo=True,
        max_batch=SLOTS,
        max_queue_depth=SLOTS,
        kv_cache_mb=64,
        torch_threads=1,
        **settings_of_one,
    )
    return ReplicaHost(build_engine(settings), node=f"node of {name}")


@asynccontextmanager
async def front(
    *names: str, depth: int = 16, make: Callable[[str], ReplicaHost] = host
) -> AsyncIterator[tuple[RayEngine, LocalFleet]]:
    fleet = LocalFleet(make)
    for name in names:
        await fleet.add(name)
    engine = RayEngine(fleet, limits=QueueLimits(depth=depth))
    engine.start()
    await engine.loaded()
    await comes_about(lambda: len(names_of(engine)) == len(names))
    try:
        yield engine, fleet
    finally:
        await engine.close()


def names_of(engine: RayEngine) -> set[str]:
    return {one.replica for one in engine.stats().replicas}


def prompt(seed: int, length: int = 200) -> tuple[int, ...]:
    draw = random.Random(seed)  # noqa: S311
    return tuple(draw.randrange(10, 400) for _ in range(length))


def endless(seed: int = 1, **changes: Any) -> Job:
    """A job that goes on until it is cancelled: hot enough never to end by itself."""
    return greedy_job(
        prompt(seed), max_tokens=LONG, sampling=Sampling(temperature=2.0, top_k=0, top_p=1.0), **changes
    )


def test_answers_equal_the_local_engines() -> None:
    """Jobs over three replicas, side by side, are word for word what one engine alone makes of them."""

    async def test() -> None:
        jobs = [
            greedy_job(
                prompt(number, 40 + number % 90),
                max_tokens=12,
                sampling=Sampling(temperature=(number % 3) / 2, seed=number),
                owner=f"key {number % 2}",
            )
            for number in range(24)
        ]
        local = build_engine(Settings(demo=True, max_batch=SLOTS, max_queue_depth=99, torch_threads=1))
        local.start()
        await local.loaded()
        alone = [(await collect(local.submit(job)))[0] for job in jobs]
        await local.close()
        async with front("a", "b", "c", depth=99) as (engine, fleet):
            together = await asyncio.gather(*(collect(engine.submit(job)) for job in jobs))
            assert [text for text, _ in together] == alone
            assert {name for name, method in fleet.calls if method == "submit"} == {"a", "b", "c"}
            await comes_about(
                lambda: engine.stats().generation_tokens == sum(end.completion_tokens for _, end in together)
            )

    run_guarded(test)


def test_who_waits_for_an_answer_is_heard_where_it_is_made() -> None:
    """The replica closes the reasoning, whether it had the job when it was asked for or was given it after."""

    async def test() -> None:
        async with front("a") as (engine, _):
            assert engine.served is not None
            tokenizer = tokenizers.Tokenizer.from_file(str(engine.served.folder / "tokenizer.json"))
            closing = tuple(tokenizer.encode("</think>", add_special_tokens=False).ids)
            limits = ThinkingLimits(closer="</think>", closing=closing, closing_line=closing)
            running, early = (engine.submit(endless(seed, thinking=limits)) for seed in (1, 2))
            early.answer_now()
            first = await anext(aiter(running))
            assert isinstance(first, Piece)
            running.answer_now()
            for ticket in (running, early):
                async for piece in ticket:
                    assert isinstance(piece, Piece)
                    if "</think>" in piece.text:
                        break
                ticket.cancel()

    run_guarded(test)


def test_a_prompt_goes_where_its_prefix_is() -> None:
    """A conversation's second turn goes to the replica that computed its first, and reports what it reused."""

    async def test() -> None:
        async with front("a", "b", "c") as (engine, fleet):
            for seed in range(6):
                await collect(engine.submit(greedy_job(prompt(seed))))
            fleet.calls.clear()
            for seed in range(6):
                _, finish = await collect(engine.submit(greedy_job((*prompt(seed), 11, 12))))
                assert finish.cached_tokens >= 192
            submits = [name for name, method in fleet.calls if method == "submit"]
            assert max(submits.count(name) for name in "abc") <= 3

    run_guarded(test)


def test_a_replica_that_dies_before_a_word_costs_nothing() -> None:
    """Its jobs that have sent nothing run again elsewhere, once, to the text that they would have had."""

    async def test() -> None:
        async with front("a", "b") as (engine, fleet):
            held = [engine.submit(endless(seed)) for seed in range(2 * SLOTS)]
            for ticket in held:
                await ticket.admitted()
            job = greedy_job(prompt(77), sampling=Sampling(temperature=1.0))
            waiting = [engine.submit(attrs.evolve(job, request_id=str(number))) for number in range(2)]
            for ticket in held:
                ticket.cancel()
            await asyncio.gather(*(ticket.admitted() for ticket in waiting))
            await fleet.kill("a")
            for ticket in waiting:
                try:
                    _, finish = await collect(ticket)
                    assert finish.completion_tokens
                except ReplicaLost:
                    pass  # it had sent something
            _, finish = await collect(engine.submit(job))
            assert names_of(engine) == {"b"}

    run_guarded(test)


def test_a_replica_that_dies_after_a_word_ends_the_answer_in_band() -> None:
    """Who has had a piece gets ReplicaLost; the front lives on, loading while nobody is there, and takes a new one."""

    async def test() -> None:
        async with front("a") as (engine, fleet):
            ticket = engine.submit(endless())
            async for item in ticket:
                assert isinstance(item, Piece)
                break
            await fleet.kill("a")
            with pytest.raises(ReplicaLost):
                await collect(ticket)
            await comes_about(lambda: engine.status == "loading")
            with pytest.raises(ModelLoading):
                engine.submit(greedy_job())
            assert engine.stats().running == 0
            await fleet.add("b")
            await comes_about(lambda: engine.status == "ok")
            assert (await collect(engine.submit(greedy_job())))[1].completion_tokens

    run_guarded(test)


def test_what_waits_outlives_every_replica() -> None:
    """Queued jobs stay in their order while no replica is there, and run on the next."""

    async def test() -> None:
        async with front("a") as (engine, fleet):
            held = [engine.submit(endless(seed)) for seed in range(SLOTS)]
            for ticket in held:
                await anext(aiter(ticket))
            waiting = [engine.submit(greedy_job(prompt(seed))) for seed in range(3)]
            assert engine.stats().waiting == len(waiting)
            await fleet.kill("a")
            for ticket in held:
                with pytest.raises(ReplicaLost):
                    await collect(ticket)
            assert engine.stats().waiting == len(waiting)
            await fleet.add("b")
            assert all([(await collect(ticket))[1].completion_tokens for ticket in waiting])

    run_guarded(test)


def test_a_cancelled_job_leaves_its_replica() -> None:
    """Cancelling reaches the replica in every stage, and the slot is given on when it has let go."""

    async def test() -> None:
        async with front("a", depth=1) as (engine, fleet):
            tickets = [engine.submit(endless(seed)) for seed in range(SLOTS + 1)]
            with pytest.raises(EngineOverloaded):
                engine.submit(endless(9))
            for ticket in tickets[:SLOTS]:
                await anext(aiter(ticket))
            for ticket in tickets:
                ticket.cancel()
            await comes_about(lambda: fleet.hosts["a"].load == 0 and not engine.stats().running)
            assert engine.stats().cancelled == len(tickets)
            assert (await collect(engine.submit(greedy_job())))[1].completion_tokens

    run_guarded(test)


def test_a_retired_replica_ends_what_it_has() -> None:
    """A replica that the deployment takes out gets nothing new, and is let go once its jobs have ended."""

    async def test() -> None:
        async with front("a", "b") as (engine, fleet):
            ticket = engine.submit(greedy_job(prompt(5), max_tokens=40))
            await ticket.admitted()
            place = next(name for name, one in fleet.hosts.items() if one.load)
            fleet.retire(place)
            fleet.calls.clear()
            for seed in range(3):
                await collect(engine.submit(greedy_job(prompt(seed))))
            assert (await collect(ticket))[1].completion_tokens
            assert place not in {name for name, method in fleet.calls if method == "submit"}
            await comes_about(lambda: names_of(engine) == {"a", "b"} - {place})

    run_guarded(test)


def test_a_silent_fronts_jobs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that no longer beats loses its jobs on the replica, as another front's beat finds out."""
    monkeypatch.setattr("maple.cluster.replica.FRONT_SILENCE", 0.0)

    async def test() -> None:
        replica = host("a")
        await replica.open()
        replica.hello("lost")
        replica.submit("lost", 1, endless())
        await comes_about(lambda: replica.load == 1)
        replica.beat("other", frozenset(), 0, 0)
        assert replica.load == 0
        await replica.close()

    run_guarded(test)


def test_a_beat_drops_what_the_front_has_no_more() -> None:
    """A cancel that was lost on its way is made good by the next beat, which spares what was submitted since."""

    async def test() -> None:
        replica = host("a")
        await replica.open()
        replica.hello("front")
        replica.submit("front", 1, endless(1))
        replica.submit("front", 2, endless(2))
        replica.beat("front", frozenset(), 1, 0)
        assert replica.load == 1
        await replica.close()

    run_guarded(test)


def test_sessions_stick_and_are_found() -> None:
    """A session's jobs stay on one replica; one that nobody knows is unknown."""

    async def test() -> None:
        async with front("a", "b", "c") as (engine, fleet):
            for turn in range(4):
                await collect(engine.submit(greedy_job(prompt(turn), session_id="talk", owner="key")))
            assert len({name for name, method in fleet.calls if method == "submit"}) == 1
            with pytest.raises(SessionUnknown):
                await engine.session_manifest("key", "other")
            with pytest.raises(SessionUnknown):
                await engine.delete_session("key", "other")
            await engine.delete_session("key", "talk")

    run_guarded(test)


@pytest.mark.parametrize("shared", [True, False])
def test_a_session_that_a_lost_replica_saved(tmp_path: pathlib.Path, shared: bool) -> None:
    """On shared storage another loads it; on a local disk it is known to be elsewhere, until it is saved anew."""

    def make(name: str) -> ReplicaHost:
        return host(name, session_dir=tmp_path / ("all" if shared else name))

    async def test() -> None:
        async with front("a", "b", make=make) as (engine, fleet):
            await collect(engine.submit(greedy_job(prompt(1), session_id="talk", owner="key")))
            saved = await engine.save_session("key", "talk")
            (place,) = {name for name, method in fleet.calls if method == "submit"}
            await fleet.kill(place)
            await comes_about(lambda: place not in names_of(engine))
            if shared:
                assert (await engine.load_session("key", "talk")).tokens == saved.tokens
                return
            for call in (engine.load_session, engine.session_manifest):
                with pytest.raises(SessionElsewhere):
                    await call("key", "talk")
            with pytest.raises(SessionUnknown):
                await engine.load_session("another", "talk")
            await collect(engine.submit(greedy_job(prompt(1), session_id="talk", owner="key")))
            await engine.save_session("key", "talk")
            assert (await engine.session_manifest("key", "talk")).tokens == saved.tokens

    run_guarded(test)


def test_draining_ends_and_refuses() -> None:
    """Drain lets what runs end; afterwards nothing is taken."""

    async def test() -> None:
        async with front("a") as (engine, _):
            running = asyncio.create_task(collect(engine.submit(greedy_job())))
            await asyncio.sleep(0)
            assert await engine.drain(HANG_GUARD)
            assert isinstance((await running)[1], Finish)
            with pytest.raises(ShuttingDown):
                engine.submit(greedy_job())

    run_guarded(test)


def test_no_cluster_is_one_line() -> None:
    """Where there is no cluster the engine is in error, with the reason."""

    class NoFleet(LocalFleet):
        async def start(self, changed: Callable[[frozenset[str]], None]) -> None:
            raise FleetFailed("there is no cluster at 10.0.0.1:6379")

    async def test() -> None:
        engine = RayEngine(NoFleet(host), limits=QueueLimits())
        engine.start()
        await engine.loaded()
        assert (engine.status, engine.error) == ("error", "there is no cluster at 10.0.0.1:6379")
        with pytest.raises(ModelFailed):
            engine.submit(greedy_job())
        await engine.close()

    run_guarded(test)
