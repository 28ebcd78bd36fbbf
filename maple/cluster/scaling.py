"""How many replicas a deployment should have, as Ray Serve's controller asks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

JOBS_A_REPLICA = 2.0
"""Jobs that run or wait on a replica, on average, above which another is wanted."""


def replicas_wanted(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """As many as bring the mean of the jobs that each has now to ``JOBS_A_REPLICA``, within the deployment's bounds."""
    jobs = sum(context.aggregated_metrics.get("jobs", {}).values())
    wanted = math.ceil(jobs / JOBS_A_REPLICA)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return max(least, min(most, wanted)), {}
