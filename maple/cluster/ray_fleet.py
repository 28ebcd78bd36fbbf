"""``Fleet`` on Ray Serve: it finds or makes the deployment, and reaches each replica by name."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, cast

import attrs
import structlog

from maple.cluster.messages import Batch, FleetFailed, ReplicaGone
from maple.cluster.watchers import unwatch, watch
from maple.engine.api import Engine
from maple.engine.errors import EngineError

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

DEPLOYMENT = "replica"
"""The name of the deployment within its application, which ``MAPLE_DEPLOYMENT`` names."""

_OBJECT_STORE = 128 << 20  # bytes: everything that crosses is small, and Ray would take a third of the memory

log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class Replicas:
    """How many there are, from ``least`` to ``most``, and what each takes: ``cores``, and ``memory`` bytes (0: unsaid).

    With ``cores`` 0 Ray places any number on a machine. ``downscale_seconds`` of idleness let one go.
    """

    least: int = 1
    most: int = 1
    cores: float = 1
    memory: int = 0
    downscale_seconds: float = 60


class RayFleet:
    """The replicas of one application. ``build`` makes a replica's engine there; it has to be importable there.

    ``address`` is a cluster's; auto finds this machine's, and starts one in this process's care where there is none;
    local starts one. There it gives each of the replicas its share of the cores.
    """

    def __init__(
        self, build: Callable[[], Engine], replicas: Replicas, *, address: str, application: str
    ) -> None:
        self._build = build
        self._replicas = replicas
        self._address = address
        self._application = application
        self._handle: DeploymentHandle[Any] | None = None
        self._own = False
        self._changed: Callable[[frozenset[str]], None] | None = None

    async def start(self, changed: Callable[[frozenset[str]], None]) -> None:
        """Connect and deploy, unless another front has deployed the same already."""
        if importlib.util.find_spec("ray") is None:
            raise FleetFailed("--engine ray needs Ray: pip install maple-server[cluster]")
        loop = asyncio.get_running_loop()

        def changed_here(names: frozenset[str]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nobody left to tell
                loop.call_soon_threadsafe(changed, names)

        try:
            self._handle = await asyncio.to_thread(self._connect)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise FleetFailed(f"no cluster at {self._address}: {_line(error)}") from error
        finally:
            _take_signals_back()
        self._changed = changed_here
        watch(self._application, changed_here)

    async def attach(self, replica: str, front: str) -> AsyncIterator[Batch]:
        """Raises ReplicaGone when the stream breaks."""
        stream = self._open_handle().options(method_name="attach", stream=True).remote(replica, front)
        try:
            async for batch in stream:
                yield cast("Batch", batch)
        except Exception as error:
            raise ReplicaGone(_line(error)) from error
        finally:
            stream.cancel()

    async def call(self, replica: str, method: str, *arguments: Any) -> Any:
        """Raises the EngineError that the replica answered with, or ReplicaGone for whatever else went wrong."""
        try:
            answer = await self._open_handle().call.remote(replica, method, *arguments)
        except Exception as error:
            raise ReplicaGone(_line(error)) from error
        if isinstance(answer, EngineError):
            raise answer
        return answer

    async def close(self) -> None:
        """Leave the cluster; one that this process started ends with it."""
        if self._changed is not None:
            unwatch(self._application, self._changed)
            self._changed = None
        if self._own:
            self._own = False
            await asyncio.to_thread(_shut_down)

    def _connect(self) -> DeploymentHandle[Any]:
        import ray  # noqa: PLC0415 -- only where a cluster is asked for
        from ray import serve  # noqa: PLC0415

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
        if not ray.is_initialized():
            self._join()
        if self._application not in serve.status().applications:
            serve.start(proxy_location="Disabled")
            serve.run(self._deployment(), name=self._application, route_prefix=None, blocking=False)
        handle = serve.get_deployment_handle(DEPLOYMENT, self._application)
        if not handle.is_initialized:
            handle._init()
        return handle

    def _join(self) -> None:
        """Connect to the cluster, or start one for this process."""
        import ray  # noqa: PLC0415 -- only where a cluster is asked for

        quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        if self._address != "local":
            try:
                ray.init(self._address, log_to_driver=False, configure_logging=False)
            except ConnectionError:
                if self._address != "auto":
                    raise
            else:
                return
        cores = self._replicas.cores * self._replicas.most
        ray.init("local", num_cpus=math.ceil(cores), object_store_memory=_OBJECT_STORE, **quiet)
        self._own = True

    def _deployment(self) -> Any:
        from ray import serve  # noqa: PLC0415 -- only where a cluster is asked for
        from ray.serve.config import RequestRouterConfig  # noqa: PLC0415

        from maple.cluster.ray_deployment import Replica  # noqa: PLC0415
        from maple.cluster.ray_router import NamedReplica  # noqa: PLC0415

        wants = self._replicas
        resources: dict[str, float] = {"num_cpus": wants.cores}
        if wants.memory:
            resources["memory"] = wants.memory
        scale = {"num_replicas": wants.most} if wants.least == wants.most else _autoscaling(wants)
        deployment = serve.deployment(Replica).options(
            name=DEPLOYMENT,
            ray_actor_options=resources,
            max_ongoing_requests=10_000,
            request_router_config=RequestRouterConfig(request_router_class=NamedReplica),
            graceful_shutdown_timeout_s=30,
            **scale,
        )
        return deployment.bind(self._build)

    def _open_handle(self) -> DeploymentHandle[Any]:
        if self._handle is None:
            raise ReplicaGone("the cluster is not connected")
        return self._handle


def _shut_down() -> None:
    import ray  # noqa: PLC0415 -- it is there: it was connected
    from ray import serve  # noqa: PLC0415

    serve.shutdown()
    ray.shutdown()


def _autoscaling(wants: Replicas) -> dict[str, Any]:
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy  # noqa: PLC0415

    policy = AutoscalingPolicy(policy_function="maple.cluster.scaling:replicas_wanted")
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=wants.least,
            max_replicas=wants.most,
            policy=policy,
            upscale_delay_s=5,
            downscale_delay_s=wants.downscale_seconds,
            metrics_interval_s=2,
            look_back_period_s=6,
        )
    }


def _take_signals_back() -> None:
    """Ray's library has put its own handler under Python's: it would end the process three seconds after a SIGTERM."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.getsignal(number))


def _line(error: BaseException) -> str:
    """The first line that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
