"""Replicas in this process: the fleet that a front sees, without a cluster, and with every way to lose one."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from typing import Any

from maple.cluster.messages import Batch, ReplicaGone
from maple.cluster.replica import ReplicaHost
from maple.engine.errors import EngineError


class LocalFleet:
    """``Fleet`` over hosts in this process. What crosses is pickled and read back, as between machines."""

    def __init__(self, make: Callable[[str], ReplicaHost]) -> None:
        self._make = make
        self.hosts: dict[str, ReplicaHost] = {}
        self.calls: list[tuple[str, str]] = []
        self._streams: dict[str, set[asyncio.Event]] = {}
        self._changed: Callable[[frozenset[str]], None] = lambda names: None

    async def start(self, changed: Callable[[frozenset[str]], None]) -> None:
        self._changed = changed
        self._tell()

    async def add(self, name: str) -> ReplicaHost:
        """One more replica, loaded."""
        host = self._make(name)
        await host.open()
        self.hosts[name] = host
        self._tell()
        return host

    async def kill(self, name: str) -> None:
        """The replica's process dies: its streams break and its calls fail."""
        host = self.hosts.pop(name)
        for broken in self._streams.pop(name, ()):
            broken.set()
        await host.close()
        self._tell()

    def retire(self, name: str) -> ReplicaHost:
        """The deployment takes a replica out: it goes on with what it has, and the front hears of it."""
        self._changed(frozenset(self.hosts) - {name})
        return self.hosts[name]

    async def attach(self, replica: str, front: str) -> AsyncIterator[Batch]:
        broken = asyncio.Event()
        self._streams.setdefault(replica, set()).add(broken)
        stream = self._host(replica).attach(front)
        lost = asyncio.ensure_future(broken.wait())
        try:
            while True:
                item = asyncio.ensure_future(anext(stream))
                await asyncio.wait({item, lost}, return_when=asyncio.FIRST_COMPLETED)
                if broken.is_set():
                    item.cancel()
                    raise ReplicaGone(f"replica {replica} died")
                try:
                    yield pickle.loads(pickle.dumps(item.result()))  # noqa: S301 -- what this test pickled
                except StopAsyncIteration:
                    return
        finally:
            lost.cancel()

    async def call(self, replica: str, method: str, *arguments: Any) -> Any:
        self.calls.append((replica, method))
        host = self._host(replica)
        await asyncio.sleep(0)
        answer = await host.answer(method, *pickle.loads(pickle.dumps(arguments)))  # noqa: S301 -- as above
        if self.hosts.get(replica) is not host:
            raise ReplicaGone(f"replica {replica} died")
        answer = pickle.loads(pickle.dumps(answer))  # noqa: S301 -- as above
        if isinstance(answer, EngineError):
            raise answer
        return answer

    async def close(self) -> None:
        for name in list(self.hosts):
            await self.hosts.pop(name).close()

    def _host(self, name: str) -> ReplicaHost:
        if name not in self.hosts:
            raise ReplicaGone(f"no replica {name}")
        return self.hosts[name]

    def _tell(self) -> None:
        self._changed(frozenset(self.hosts))
