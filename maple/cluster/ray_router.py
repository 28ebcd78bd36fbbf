"""Ray Serve's router for our deployment. Serve pickles the class by value: it refers to no lock."""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from maple.cluster.watchers import tell


class NamedReplica(RequestRouter):  # type: ignore[misc]  # Ray is not there where types are checked
    """Sends each call to the replica that its first argument names; the front has chosen.

    Where that one is gone any other gets the call, and refuses it by name: so no call waits for what is lost.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The named replica alone, or all of them."""
        wanted = pending_request.args[0] if pending_request is not None and pending_request.args else None
        named = [one for one in candidate_replicas if one.replica_id.unique_id == wanted]
        return [named or candidate_replicas]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Tell whoever watches."""
        super().update_replicas(replicas)
        tell(self.app_name, frozenset(one.replica_id.unique_id for one in replicas))
