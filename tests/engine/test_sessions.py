"""Sessions behind the engine's thread: saved between steps, loaded after a restart, gone when deleted."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from maple_testing.engine import collect
from maple_testing.guard import HANG_GUARD

from maple.engine.admission import QueueLimits
from maple.engine.api import Job, Sampling
from maple.engine.errors import SessionMismatch, SessionTampered, SessionUnknown, ShuttingDown
from maple.engine.runner import PrefillLimits
from maple.engine.session_files import SessionFiles
from maple.engine.stats import Prefill
from maple.engine.worker import ThreadedEngine
from maple.native.library import Unavailable, available
from maple.native.loader import KernelOptions, native_loader
from maple.native.weights import NativeSource

pytestmark = pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="the kernels are not built here: torch serves alone"
)

Start = Callable[..., AbstractAsyncContextManager[ThreadedEngine]]


@pytest.fixture
def start(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> Start:
    """Engines over one folder of sessions, each as after a restart."""

    @asynccontextmanager
    async def run(prefill: PrefillLimits | None = None, **options: Any) -> AsyncIterator[ThreadedEngine]:
        defaults = {"threads": 2, "slots": 2, "kv_cache_mb": 16, "prefix_cache_mb": 8}
        kernels = KernelOptions(**{**defaults, **options})
        engine = ThreadedEngine(
            native_loader(NativeSource(source=str(golden_folder / "mlx-2bit")), kernels),
            limits=QueueLimits(slots=2, depth=8),
            prefill=prefill,
            session_files=SessionFiles(tmp_path / "sessions", max_bytes=1 << 28),
        )
        engine.start()
        await engine.loaded()
        try:
            yield engine
        finally:
            await engine.close()

    return run


@pytest.fixture(scope="module")
def ids(golden_folder: pathlib.Path) -> list[int]:
    prompts = json.loads((golden_folder / "prompts.json").read_text())["prompts"]
    return [int(token) for token in (prompts[2] * 20)[:600]]


def job(ids: list[int], session_id: str | None = "s", *, max_tokens: int = 8, **changes: Any) -> Job:
    return Job(
        request_id="r",
        prompt_ids=tuple(ids),
        max_tokens=max_tokens,
        sampling=Sampling(temperature=0),
        session_id=session_id,
        **changes,
    )


async def until_prefilling(engine: ThreadedEngine) -> tuple[Prefill, ...]:
    """Return once the first prompt is on its way."""
    while not (prefills := engine.stats().prefills) or not prefills[0].done_tokens:  # noqa: ASYNC110 -- as above
        await asyncio.sleep(0)
    return prefills


async def test_a_conversation_goes_on_after_a_restart(start: Start, ids: list[int]) -> None:
    """Saved, loaded by a new engine, continued: the same greedy text, from what was saved."""
    async with start() as engine:
        await collect(engine.submit(job(ids[:300])))
        manifest = await engine.save_session("", "s")
        assert manifest.tokens >= 300
        assert await engine.session_manifest("", "s") == manifest
        text, warm = await collect(engine.submit(job(ids[:340])))
        assert warm.cached_tokens == 300
    async with start() as engine:
        loaded = await engine.load_session("", "s")
        assert (loaded.session_id, loaded.tokens, loaded.bytes) == ("s", manifest.tokens, manifest.bytes)
        assert engine.stats().sessions <= 1
        again, finish = await collect(engine.submit(job(ids[:340])))
    assert (again, finish.cached_tokens) == (text, 300)


async def test_a_saved_session_is_loaded_when_it_is_used(start: Start, ids: list[int]) -> None:
    """Nobody asked for the load: after a restart, or once it was evicted, the session is there when used."""
    async with start() as engine:
        text, _ = await collect(engine.submit(job(ids[:200])))
        await engine.save_session("", "s")
    async with start() as engine:
        again, finish = await collect(engine.submit(job(ids[:200])))
        assert (again, finish.cached_tokens) == (text, 199)
    async with start(kv_cache_mb=2, prefix_cache_mb=1) as engine:
        for turn in range(20):
            await collect(engine.submit(job([turn, *ids[:300]], None)))
        assert engine.stats().prefix_cache_evictions > 0
        again, finish = await collect(engine.submit(job(ids[:200])))
        assert (again, finish.cached_tokens) == (text, 199)


async def test_a_running_session_is_saved_at_its_step(start: Start, ids: list[int]) -> None:
    """A save answers while the sequence goes on, with what has been computed by then."""
    async with start(prefill=PrefillLimits(chunk=1, budget=1)) as engine:
        running = engine.submit(job(ids))
        await until_prefilling(engine)
        manifest = await engine.save_session("", "s")
        assert 0 < manifest.tokens < len(ids)
        running.cancel()


async def test_what_is_not_there_is_unknown(start: Start, ids: list[int]) -> None:
    """Nothing live, nothing saved, or another owner's."""
    async with start() as engine:
        for call in (
            engine.save_session,
            engine.load_session,
            engine.session_manifest,
            engine.delete_session,
        ):
            with pytest.raises(SessionUnknown):
                await call("", "s")
        await collect(engine.submit(job(ids[:100], owner="me")))
        with pytest.raises(SessionUnknown):
            await engine.save_session("you", "s")
        await engine.save_session("me", "s")
        for call in (engine.load_session, engine.session_manifest, engine.delete_session):
            with pytest.raises(SessionUnknown):
                await call("you", "s")


async def test_deleting_takes_live_and_saved_state(start: Start, ids: list[int]) -> None:
    """Neither is there afterwards, also where the session runs meanwhile."""
    async with start() as engine:
        await collect(engine.submit(job(ids[:100])))
        await engine.delete_session("", "s")
        _, finish = await collect(engine.submit(job(ids[:100])))
        assert finish.cached_tokens == 0
        await engine.save_session("", "s")
        running = engine.submit(job(ids[:100], max_tokens=3500))
        await anext(aiter(running))
        await engine.delete_session("", "s")
        running.cancel()
        while engine.stats().running:  # noqa: ASYNC110 -- nothing tells of the last step
            await asyncio.sleep(0)
        for call in (engine.save_session, engine.load_session, engine.delete_session):
            with pytest.raises(SessionUnknown):
                await call("", "s")


async def test_another_format_is_refused_and_a_use_goes_on_without(start: Start, ids: list[int]) -> None:
    """A load says 409's reason; a request in the session runs as if nothing were saved."""
    async with start() as engine:
        await collect(engine.submit(job(ids[:100])))
        await engine.save_session("", "s")
    async with start(kv_dtype="f32") as engine:
        with pytest.raises(SessionMismatch):
            await engine.load_session("", "s")
        _, finish = await collect(engine.submit(job(ids[:100])))
        assert finish.cached_tokens == 0


async def test_a_tampered_session_is_not_loaded(start: Start, ids: list[int], tmp_path: pathlib.Path) -> None:
    """Nothing of it is live afterwards, and a request in it is answered all the same."""
    async with start() as engine:
        await collect(engine.submit(job(ids[:100])))
        await engine.save_session("", "s")
    (file,) = tmp_path.rglob("*.safetensors")  # noqa: ASYNC240 -- nothing else runs
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    async with start() as engine:
        with pytest.raises(SessionTampered):
            await engine.load_session("", "s")
        _, finish = await collect(engine.submit(job(ids[:100])))
        assert (finish.cached_tokens, engine.stats().kv_bytes > 0) == (0, True)


async def test_saves_at_once_leave_a_whole_session(start: Start, ids: list[int]) -> None:
    """Each answers with its own manifest; what lies there loads."""
    async with start() as engine:
        await collect(engine.submit(job(ids[:300])))
        await asyncio.gather(*(engine.save_session("", "s") for _ in range(4)))
        loaded = await engine.load_session("", "s")
        assert loaded.tokens >= 300


async def test_a_closed_engine_answers_every_call(start: Start, ids: list[int]) -> None:
    """Nobody waits for a thread that has ended."""
    async with start() as engine:
        await collect(engine.submit(job(ids[:100])))
        saving = asyncio.ensure_future(engine.save_session("", "s"))
        await asyncio.sleep(0)
    await asyncio.wait([saving], timeout=HANG_GUARD)
    assert saving.done()
    saving.exception()
    with pytest.raises(ShuttingDown):
        await engine.save_session("", "s")


async def test_progress_and_queue_are_told(start: Start, ids: list[int]) -> None:
    """While a long prompt is computed, the counts tell how far, and who waits where."""
    async with start(prefill=PrefillLimits(chunk=1, budget=1), slots=2) as engine:
        tickets = [engine.submit(job([n, *ids[:590]], None)) for n in range(4)]
        prefills = await until_prefilling(engine)
        assert 0 < prefills[0].done_tokens < prefills[0].prompt_tokens == 591
        assert [one.position for one in engine.stats().queue] == [1, 2]
        for ticket in tickets:
            ticket.cancel()
