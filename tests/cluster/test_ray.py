"""A real Ray cluster of several nodes on this machine, with replicas of the embedded model.

Needs Ray, which only ``tox -e cluster`` installs: without it these are skipped.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from maple_testing.engine import collect, greedy_job
from maple_testing.guard import comes_about, run_guarded

ray = pytest.importorskip("ray", reason="Ray is not installed: tox -e cluster runs these")

from ray import serve  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from maple.choose_engine import build_engine  # noqa: E402
from maple.cluster.engine import RayEngine  # noqa: E402
from maple.cluster.ray_fleet import RayFleet, Replicas  # noqa: E402
from maple.engine.admission import QueueLimits  # noqa: E402
from maple.engine.api import Job, Sampling  # noqa: E402
from maple.engine.errors import EngineError  # noqa: E402
from maple.settings import Settings  # noqa: E402

REPLICA = Settings(demo=True, max_batch=4, max_queue_depth=1 << 20, kv_cache_mb=64, torch_threads=1)
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head and two more nodes; replicas take no processor of theirs, so that all fit."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
    for _ in range(2):
        nodes.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.init(nodes.address, log_to_driver=False)
    yield nodes
    serve.shutdown()
    ray.shutdown()
    nodes.shutdown()


@asynccontextmanager
async def fronts(replicas: Replicas, *, count: int = 1) -> AsyncIterator[tuple[str, list[RayEngine]]]:
    """So many fronts over one deployment of its own, which goes with them."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    build = functools.partial(build_engine, REPLICA)
    engines = []
    for _ in range(count):
        engine = RayEngine(
            RayFleet(build, replicas, address="auto", application=name), limits=QueueLimits(depth=2000)
        )
        engine.start()
        await engine.loaded()
        engines.append(engine)
    try:
        await comes_about(lambda: all(len(one.stats().replicas) >= replicas.least for one in engines[-1:]))
        yield name, engines
    finally:
        for engine in engines:
            await engine.close()
        await asyncio.to_thread(serve.delete, name)


def jobs(count: int) -> list[Job]:
    draw = random.Random(11)  # noqa: S311
    return [
        greedy_job(
            tuple(draw.randrange(10, 400) for _ in range(draw.randrange(8, 160))),
            max_tokens=draw.randrange(1, 24),
            sampling=Sampling(temperature=draw.choice((0, 0.7, 1.5)), seed=number),
            owner=draw.choice(("one", "two")),
        )
        for number in range(count)
    ]


def test_three_hundred_mixed_answers_equal_the_local_engines(cluster: Cluster) -> None:
    """Alone on the local engine or side by side over three replicas: the same text and counts, for 300 requests."""

    async def test() -> None:
        wanted = jobs(300)
        local = build_engine(REPLICA)
        local.start()
        await local.loaded()
        alone = [await collect(local.submit(job)) for job in wanted]
        await local.close()
        async with fronts(Replicas(least=3, most=3, cores=0)) as (_, [engine]):
            together = await asyncio.gather(*(collect(engine.submit(job)) for job in wanted))
            assert [text for text, _ in together] == [text for text, _ in alone]
            assert [end.completion_tokens for _, end in together] == [
                end.completion_tokens for _, end in alone
            ]
            assert all(one.held_tokens for one in engine.stats().replicas)

    run_guarded(test)


def test_replicas_that_are_killed_leave_no_request_without_an_end(cluster: Cluster) -> None:
    """Requests keep coming while replicas die: each has one end, an answer or a clear error, and the fleet recovers."""

    async def test() -> None:
        async with fronts(Replicas(least=3, most=3, cores=0)) as (name, [engine]):
            ends: Counter[str] = Counter()

            async def ask(job: Job, after: float) -> None:
                await asyncio.sleep(after)
                try:
                    await collect(engine.submit(job))
                except EngineError as error:
                    ends[type(error).__name__] += 1
                else:
                    ends["answered"] += 1

            async def kill() -> None:
                for number in range(3):
                    await asyncio.sleep(3)
                    actors = [
                        one
                        for one in ray.util.list_named_actors(all_namespaces=True)
                        if f"{name}#" in one["name"]
                    ]
                    victim = actors[number % len(actors)]
                    ray.kill(ray.get_actor(victim["name"], namespace=victim["namespace"]), no_restart=False)

            wanted = jobs(600)
            killer = asyncio.create_task(kill())
            await asyncio.gather(*(ask(job, number / 60) for number, job in enumerate(wanted)))
            await killer
            assert ends.total() == len(wanted)
            assert set(ends) <= {"answered", "ReplicaLost", "ModelLoading"}
            assert ends["answered"] > len(wanted) * 0.8
            await comes_about(lambda: len(engine.stats().replicas) == 3)
            assert (engine.stats().running, engine.stats().waiting) == (0, 0)
            await collect(engine.submit(greedy_job()))

    run_guarded(test)


def test_a_cancelled_job_leaves_its_replica(cluster: Cluster) -> None:
    """After a cancel the replicas hold nothing, whatever stage the job was in."""

    async def test() -> None:
        async with fronts(Replicas(least=2, most=2, cores=0)) as (name, [engine]):
            hot = Sampling(temperature=2.0, top_k=0, top_p=1.0, seed=1)
            tickets = [engine.submit(greedy_job(max_tokens=4000, sampling=hot)) for _ in range(12)]
            await anext(aiter(tickets[0]))
            for ticket in tickets:
                ticket.cancel()
            await comes_about(lambda: not engine.stats().running)
            replicas = await asyncio.to_thread(
                serve.get_deployment_handle("replica", name).broadcast("status").results
            )
            assert [one.load for one in replicas] == [0, 0]

    run_guarded(test)


def test_two_fronts_share_a_deployment(cluster: Cluster) -> None:
    """What one front had computed the other's prompt reuses; one that closes leaves the other's jobs alone."""

    async def test() -> None:
        async with fronts(Replicas(least=2, most=2, cores=0), count=2) as (_, [first, second]):
            await comes_about(lambda: len(first.stats().replicas) == 2)
            prompt = tuple(range(20, 320))
            await collect(first.submit(greedy_job(prompt)))
            await comes_about(lambda: sum(one.held_tokens for one in second.stats().replicas))
            _, finish = await collect(second.submit(greedy_job((*prompt, 7))))
            assert finish.cached_tokens >= 256
            running = second.submit(greedy_job(max_tokens=60))
            await first.close()
            assert (await collect(running))[1].completion_tokens

    run_guarded(test)


def test_a_deployment_grows_under_load_and_shrinks_when_idle(cluster: Cluster) -> None:
    """With least..most replicas, jobs that wait bring more, and idleness the least again; no job is lost."""

    async def test() -> None:
        async with fronts(Replicas(least=1, most=2, cores=0, downscale_seconds=2)) as (_, [engine]):
            grown = asyncio.Event()

            async def keep_asking() -> None:
                while not grown.is_set():
                    await collect(engine.submit(greedy_job(max_tokens=200)))

            askers = [asyncio.create_task(keep_asking()) for _ in range(12)]
            await comes_about(lambda: len(engine.stats().replicas) == 2)
            grown.set()
            await asyncio.gather(*askers)
            await comes_about(lambda: len(engine.stats().replicas) == 1)
            assert (await collect(engine.submit(greedy_job())))[1].completion_tokens

    run_guarded(test)


def test_the_command_shows_the_replicas(cluster: Cluster) -> None:
    """``maple cluster status`` tells of each replica; a name that nobody deployed is one line."""

    def status(name: str) -> subprocess.CompletedProcess[str]:
        words = ["cluster", "status", "--json", "--ray-address", cluster.address, "--deployment", name]
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "maple", *words], capture_output=True, text=True
        )

    async def test() -> None:
        async with fronts(Replicas(cores=0)) as (name, [engine]):
            told = await asyncio.to_thread(status, name)
            assert told.returncode == 0, told.stderr
            shown = json.loads(told.stdout)
            assert (shown["status"], shown["states"]) == ("RUNNING", {"RUNNING": 1})
            assert [one["replica"] for one in shown["replicas"]] == [
                one.replica for one in engine.stats().replicas
            ]
        refused = await asyncio.to_thread(status, "nobody")
        assert refused.returncode == 1
        assert refused.stderr.splitlines()[-1].endswith("has no deployment 'nobody'")

    run_guarded(test)
