"""The deployment class, as Ray Serve runs it in each replica."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import ray
from ray import serve

from maple.cluster.messages import Batch, ReplicaGone
from maple.cluster.replica import ReplicaHost
from maple.engine.api import Engine
from maple.engine.stats import ReplicaLoad


class Replica:
    """A replica: ``ReplicaHost`` behind Ray's names. ``build`` makes its engine.

    Every method is a coroutine: Serve would run a plain one on a thread of its own, and the host has no lock.
    """

    async def __init__(self, build: Callable[[], Engine]) -> None:  # type: ignore[misc]  # Serve awaits it
        self._name = serve.get_replica_context().replica_id.unique_id
        node = ray.get_runtime_context().get_node_id()
        self._host = ReplicaHost(build(), node=node)
        await self._host.open()

    async def attach(self, name: str, front: str) -> AsyncIterator[Batch]:
        """See ``ReplicaHost.attach``."""
        self._require(name)
        async for batch in self._host.attach(front):
            yield batch

    async def call(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of the host by name. An EngineError is an answer: Ray would wrap what is raised."""
        self._require(name)
        return await self._host.answer(method, *arguments)

    async def status(self) -> ReplicaLoad:
        """What ``maple cluster status`` shows of it."""
        return self._host.status(self._name)

    async def check_health(self) -> None:
        """Raises ModelFailed where the engine is broken: Ray starts another replica."""
        self._host.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the deployment grows and shrinks by."""
        return {"jobs": float(self._host.load)}

    async def __del__(self) -> None:
        await self._host.close()

    def _require(self, name: str) -> None:
        if name != self._name:
            raise ReplicaGone(f"replica {name} is gone")
