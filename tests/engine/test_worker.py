"""The engine's thread: loading, steps, cancellation and its end."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from maple_testing.engine import collect
from maple_testing.guard import HANG_GUARD

from maple.engine.admission import QueueLimits
from maple.engine.api import Job, Piece, Sampling
from maple.engine.errors import GenerationFailed, JobCancelled, ModelFailed, ModelLoading, ShuttingDown
from maple.engine.runner import LoadedEngine, PrefillLimits
from maple.engine.ticket import JobTicket
from maple.engine.worker import ThreadedEngine

ENDLESS = 1_000_000


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "maple-engine"]


class Gate:
    """Stops a runner at the start of every step until the test lets it go on."""

    def __init__(self, base: Any) -> None:
        gate = self
        self.arrived = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.broken = False

        class GatedRunner(base):  # type: ignore[misc]
            def step(self, slices: Sequence[Any]) -> Any:
                gate.arrived.release()
                assert gate.go_on.acquire(timeout=HANG_GUARD)
                if gate.broken:
                    raise RuntimeError("broken on purpose")
                return super().step(slices)

        self.runner = GatedRunner()

    async def in_step(self) -> None:
        """Return when the runner stands at the start of a step."""
        assert await asyncio.to_thread(self.arrived.acquire, timeout=HANG_GUARD)

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self.go_on.release()


@pytest.fixture
def running(load_toy: Callable[..., LoadedEngine], toy_runner: Any) -> Any:
    """A context manager: an engine over a toy model that has been loaded, closed at the end."""

    @asynccontextmanager
    async def run(
        runner: Any = None, prefill: PrefillLimits | None = None, **limits: float
    ) -> AsyncIterator[ThreadedEngine]:
        loaded = load_toy(runner or toy_runner())
        engine = ThreadedEngine(lambda _: loaded, limits=QueueLimits(**limits), prefill=prefill)  # type: ignore[arg-type]
        engine.start()
        await engine.loaded()
        try:
            yield engine
        finally:
            await engine.close()
            assert not engine_threads()

    return run


async def until_idle(engine: ThreadedEngine) -> None:
    """Wait, step by step of the thread, until no slot is taken."""
    assert await engine.drain(HANG_GUARD)


async def test_the_model_loads_in_the_background(load_toy: Any, toy_runner: Any) -> None:
    """While the loader works the loop is free, jobs are refused as loading, and then the engine is ok."""
    begun, go_on = threading.Event(), threading.Event()

    def loader(cancelled: Callable[[], bool]) -> LoadedEngine:
        begun.set()
        assert go_on.wait(HANG_GUARD)
        loaded: LoadedEngine = load_toy(toy_runner())
        return loaded

    engine = ThreadedEngine(loader, limits=QueueLimits())
    engine.start()
    assert await asyncio.to_thread(begun.wait, HANG_GUARD)
    assert (engine.status, engine.served, engine.error) == ("loading", None, None)
    with pytest.raises(ModelLoading):
        engine.submit(Job(request_id="r", prompt_ids=(1,), max_tokens=1, sampling=Sampling()))
    go_on.set()
    await engine.loaded()
    assert engine.status == "ok"
    assert engine.served is not None
    assert engine.served.vocabulary == 512
    await engine.close()


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (ModelFailed("no config.json in maple"), "no config.json in maple"),
        (RuntimeError("/secret/path broke"), "the model could not be loaded; the server's log says why"),
    ],
)
async def test_a_failed_load_leaves_a_living_engine(make_job: Any, failure: Exception, line: str) -> None:
    """A load that fails is one line and a status; jobs are refused with it, and the thread is gone."""

    def loader(cancelled: Callable[[], bool]) -> LoadedEngine:
        raise failure

    engine = ThreadedEngine(loader, limits=QueueLimits())
    engine.start()
    await engine.loaded()
    assert (engine.status, engine.error, engine.served) == ("error", line, None)
    with pytest.raises(ModelFailed) as caught:
        engine.submit(make_job())
    assert caught.value.reason == line
    assert await engine.drain(HANG_GUARD)
    await engine.close()
    assert not engine_threads()


async def test_closing_during_the_load_ends_the_thread() -> None:
    """The loader is told that nobody waits for it; whatever it raises then is no failure to report."""
    begun, never = threading.Event(), threading.Event()

    def loader(cancelled: Callable[[], bool]) -> LoadedEngine:
        begun.set()
        while not cancelled():
            never.wait(0.001)
        raise RuntimeError("cancelled")

    engine = ThreadedEngine(loader, limits=QueueLimits())
    engine.start()
    assert await asyncio.to_thread(begun.wait, HANG_GUARD)
    await engine.close()
    await engine.loaded()
    assert (engine.status, engine.error) == ("error", "the engine is closed")
    assert not engine_threads()


async def test_closing_twice_or_unstarted_is_harmless(load_toy: Any, toy_runner: Any) -> None:
    """An engine can be closed whatever became of it."""
    engine = ThreadedEngine(lambda _: load_toy(toy_runner()), limits=QueueLimits())
    await engine.close()
    started = ThreadedEngine(lambda _: load_toy(toy_runner()), limits=QueueLimits())
    started.start()
    await started.close()
    await started.close()


async def test_the_same_seed_gives_the_same_text_alone_or_behind_others(running: Any, make_job: Any) -> None:
    """Ten times over, the text of a request does not depend on what waits, runs or ran beside it."""
    wanted = make_job(sampling=Sampling(temperature=1, seed=-7), max_tokens=30)
    async with running(slots=4, depth=100) as engine:
        first, _ = await collect(engine.submit(wanted))
        assert first
        for round_ in range(10):
            others = [
                engine.submit(
                    make_job((9, round_, n), sampling=Sampling(temperature=1, seed=n), max_tokens=5 + n)
                )
                for n in range(round_)
            ]
            again, _ = await collect(engine.submit(wanted))
            assert again == first
            await asyncio.gather(*(collect(other) for other in others))


async def test_different_seeds_differ(running: Any, make_job: Any) -> None:
    """Two seeds give two texts, and no seed gives a new one each time."""
    async with running() as engine:
        texts = [
            (
                await collect(
                    engine.submit(make_job(sampling=Sampling(temperature=1, seed=seed), max_tokens=30))
                )
            )[0]
            for seed in (1, 2, None, None)
        ]
        assert len(set(texts)) == 4


async def test_jobs_run_in_order_and_are_counted(running: Any, make_job: Any) -> None:
    """With one slot the second job is admitted when the first has ended; the counters add both up."""
    async with running() as engine:
        tickets = [engine.submit(make_job(max_tokens=3)) for _ in range(3)]
        assert (engine.stats().running, engine.stats().waiting) == (1, 2)
        finishes = [(await collect(ticket))[1] for ticket in tickets]
        assert [finish.queue_seconds for finish in finishes] == sorted(f.queue_seconds for f in finishes)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.cancelled, stats.kv_bytes) == (0, 0, 0, 0)
        assert (stats.prompt_tokens, stats.generation_tokens) == (9, 9)


async def test_a_slot_is_free_when_its_end_is_heard_of(running: Any, make_job: Any) -> None:
    """With no queue at all, one client after another is served: its Finish comes after its slot is free."""
    async with running(depth=0) as engine:
        for _ in range(20):
            await collect(engine.submit(make_job(max_tokens=2)))


@pytest.mark.parametrize("steps", [0, 1, 5])
async def test_cancelling_frees_the_slot_within_the_step(
    running: Any, make_job: Any, toy_runner: Any, steps: int
) -> None:
    """In prefill and in decode, the step that runs when a job is cancelled is its last; it counts once."""
    gate = Gate(toy_runner)
    async with running(gate.runner, PrefillLimits(chunk=4, budget=4)) as engine:
        ticket = engine.submit(make_job(range(10), max_tokens=ENDLESS))
        waiter = engine.submit(make_job(max_tokens=1))
        gate.let(steps)
        for _ in range(steps + 1):
            await gate.in_step()
        ticket.cancel()
        ticket.cancel()
        assert (engine.stats().running, engine.stats().cancelled) == (1, 1)
        with pytest.raises(JobCancelled):
            await collect(ticket)
        gate.let(1)
        await waiter.admitted()
        await gate.in_step()
        assert len(gate.runner.steps) == steps + 1
        gate.let(1)
        await collect(waiter)
        assert engine.stats().cancelled == 1


async def test_a_waiter_that_leaves_is_never_run(running: Any, make_job: Any, toy_runner: Any) -> None:
    """A job cancelled in the queue is counted and gone at once, without any slice of its prompt."""
    gate = Gate(toy_runner)
    async with running(gate.runner) as engine:
        first = engine.submit(make_job(max_tokens=1))
        waiter = engine.submit(make_job(range(50)))
        waiter.cancel()
        assert (engine.stats().waiting, engine.stats().cancelled) == (0, 1)
        gate.let(1)
        await collect(first)
        assert gate.runner.steps == [[(0, 3)]]


async def test_two_hundred_leaving_clients_leave_nothing_behind(
    running: Any, make_job: Any, endless_runner: Any
) -> None:
    """Clients that leave in the queue, in prefill and in decode: no thread, ticket or cache stays."""
    limits = PrefillLimits(chunk=4, budget=4)
    async with running(endless_runner(), slots=2, depth=200, prefill=limits) as engine:
        threads = threading.active_count()
        for number in range(200):
            ticket = engine.submit(make_job(range(1, 40), max_tokens=ENDLESS))
            if number % 3:
                await ticket.admitted()
            if number % 3 == 1:
                assert isinstance(await anext(aiter(ticket)), Piece)
            ticket.cancel()
        del ticket
        last = engine.submit(make_job(max_tokens=1))
        await collect(last)
        del last
        await until_idle(engine)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.cancelled, stats.kv_bytes) == (0, 0, 200, 0)
        assert threading.active_count() <= threads
        gc.collect()
        assert not [thing for thing in gc.get_objects() if type(thing) is JobTicket]


async def test_a_broken_step_fails_its_sequences_and_the_engine_goes_on(
    running: Any, make_job: Any, toy_runner: Any
) -> None:
    """Who was in the step gets GenerationFailed; who was not, and who comes later, is served."""
    gate = Gate(toy_runner)
    async with running(gate.runner, slots=2) as engine:
        tickets = [engine.submit(make_job())]
        await gate.in_step()
        tickets.append(engine.submit(make_job()))
        gate.broken = True
        gate.let(1)
        await gate.in_step()
        gate.broken = False
        gate.let(100)
        results = await asyncio.gather(*(collect(ticket) for ticket in tickets), return_exceptions=True)
        assert isinstance(results[0], GenerationFailed)
        assert isinstance(results[1], tuple)
        assert engine.status == "ok"
        assert (await collect(engine.submit(make_job())))[1].completion_tokens == 8


async def test_two_broken_steps_in_a_row_end_the_engine(running: Any, make_job: Any, toy_runner: Any) -> None:
    """The engine is in error, later and waiting jobs get ModelFailed, and nothing hangs."""
    gate = Gate(toy_runner)
    gate.broken = True
    async with running(gate.runner) as engine:
        tickets = [engine.submit(make_job()) for _ in range(4)]
        gate.let(2)
        results = await asyncio.gather(*(collect(ticket) for ticket in tickets), return_exceptions=True)
        assert [type(result) for result in results] == [GenerationFailed] * 2 + [ModelFailed] * 2
        assert (engine.status, engine.error) == ("error", "the model failed in two steps in a row")
        with pytest.raises(ModelFailed):
            engine.submit(make_job())
        assert await engine.drain(HANG_GUARD)
        assert (engine.stats().running, engine.stats().waiting, engine.stats().cancelled) == (0, 0, 0)


async def test_a_drain_waits_for_what_runs_and_what_waits(running: Any, make_job: Any) -> None:
    """Draining refuses new jobs and returns True when the others have all ended well."""
    async with running() as engine:
        tickets = [engine.submit(make_job(max_tokens=4)) for _ in range(3)]
        drained = asyncio.ensure_future(engine.drain(HANG_GUARD))
        finishes = [(await collect(ticket))[1].completion_tokens for ticket in tickets]
        assert finishes == [4, 4, 4]
        assert await drained
        assert engine.draining
        with pytest.raises(ShuttingDown):
            engine.submit(make_job())


async def test_a_drain_cancels_what_outlasts_it(running: Any, make_job: Any, endless_runner: Any) -> None:
    """After the timeout, running and waiting jobs get ShuttingDown, and the slots come back."""
    async with running(endless_runner()) as engine:
        tickets = [engine.submit(make_job(max_tokens=ENDLESS)) for _ in range(2)]
        assert not await engine.drain(0.01)
        for ticket in tickets:
            with pytest.raises(ShuttingDown):
                await collect(ticket)
        await until_idle(engine)
        assert engine.stats().cancelled == 2


async def test_closing_ends_running_jobs(running: Any, make_job: Any, endless_runner: Any) -> None:
    """Close during prefill or decode raises ShuttingDown to the readers and ends the thread."""
    async with running(endless_runner(), prefill=PrefillLimits(chunk=1, budget=1)) as engine:
        ticket = engine.submit(make_job(range(500), max_tokens=ENDLESS))
        await ticket.admitted()
    with pytest.raises(ShuttingDown):
        await collect(ticket)


async def test_a_job_without_a_prompt_is_refused(running: Any, make_job: Any) -> None:
    """There is nothing to continue: a mistake of the caller, raised to it."""
    async with running() as engine:
        with pytest.raises(ValueError, match="prompt"):
            engine.submit(make_job(()))


def test_a_loop_that_ends_without_closing_the_engine_ends_the_thread(
    load_toy: Any, toy_runner: Any, make_job: Any
) -> None:
    """A forgotten engine does not run on for nobody, nor print anything."""

    async def forget() -> None:
        engine = ThreadedEngine(lambda _: load_toy(toy_runner()), limits=QueueLimits())
        engine.start()
        await engine.loaded()
        engine.submit(make_job(max_tokens=ENDLESS))

    asyncio.run(forget())
    for thread in engine_threads():
        thread.join(HANG_GUARD)
        assert not thread.is_alive()


async def test_a_job_can_be_asked_how_far_it_is(running: Any, make_job: Any, toy_runner: Any) -> None:
    """Its place while it waits, the tokens of its prompt step by step, what was there of them, its own tokens."""

    class Warm(toy_runner):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(prefix=range(4))

    gate, limits = Gate(Warm), PrefillLimits(chunk=4, budget=4)
    async with running(gate.runner, slots=1, prefill=limits) as engine:
        first, second = (engine.submit(make_job(range(12), max_tokens=2)) for _ in range(2))
        seen = []
        for _ in range(3):
            await gate.in_step()
            await asyncio.sleep(0)
            seen.append(first.status())
            gate.let(1)
        assert [one.state for one in engine.jobs()] == ["decode", "queued"]
        gate.let(8)
        await collect(first)
        await collect(second)
    assert [(one.state, one.cached, one.processed, one.total) for one in seen] == [
        *(("prefill", 4, done, 12) for done in (4, 8)),
        ("decode", 4, 12, 12),
    ]
