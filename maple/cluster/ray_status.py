"""What a cluster's deployment is doing, asked of Ray and of each replica."""

from __future__ import annotations

import importlib.util

import attrs

from maple.cluster.messages import FleetFailed
from maple.cluster.ray_fleet import DEPLOYMENT
from maple.engine.stats import ReplicaLoad

_SECONDS = 10.0  # for all replicas to answer


@attrs.frozen(kw_only=True)
class ClusterStatus:
    """``states`` counts replicas by Ray's own words (RUNNING, STARTING, …); ``replicas`` are those that answered."""

    deployment: str
    status: str
    states: dict[str, int]
    replicas: tuple[ReplicaLoad, ...]


def cluster_status(address: str, application: str) -> ClusterStatus:
    """Raises FleetFailed where there is no cluster, or no such deployment on it. Blocks, some seconds at most."""
    if importlib.util.find_spec("ray") is None:
        raise FleetFailed("this needs Ray: pip install maple-server[cluster]")
    import ray  # noqa: PLC0415 -- only where it is asked for
    from ray import serve  # noqa: PLC0415

    try:
        ray.init(address, log_to_driver=False, configure_logging=False)
    except ConnectionError as error:
        raise FleetFailed(f"no cluster at {address}") from error
    try:
        found = serve.status().applications.get(application)
        if found is None:
            raise FleetFailed(f"the cluster at {address} has no deployment {application!r}")
        handle = serve.get_deployment_handle(DEPLOYMENT, application)
        answers = handle.broadcast("status").results(timeout_s=_SECONDS, return_exceptions=True)
        return ClusterStatus(
            deployment=application,
            status=str(found.status.value),
            states=dict(found.deployments[DEPLOYMENT].replica_states),
            replicas=tuple(one for one in answers if isinstance(one, ReplicaLoad)),
        )
    finally:
        ray.shutdown()
