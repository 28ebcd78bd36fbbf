"""``maple cluster status``: the replicas behind a deployment, where they are, their state and load."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

import attrs

from maple.command import Command, CommandParser, read_configuration
from maple.errors import CommandFailed

if TYPE_CHECKING:
    from maple.cluster.ray_status import ClusterStatus

_COLUMNS = "{:<12} {:<12} {:>6} {:>6} {:>12}"


def _declare(parser: CommandParser) -> None:
    parser.add_argument("what", choices=("status",), help="status: the replicas, their state and load")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _cluster(given: argparse.Namespace) -> int:
    from maple.cluster.messages import FleetFailed  # noqa: PLC0415 -- only for this
    from maple.cluster.ray_status import cluster_status  # noqa: PLC0415

    settings = read_configuration(given).settings
    try:
        status = cluster_status(settings.ray_address, settings.deployment)
    except FleetFailed as error:
        raise CommandFailed(str(error)) from error
    text = json.dumps(attrs.asdict(status), indent=2) if given.json else "\n".join(_lines(status))
    sys.stdout.write(f"{text}\n")
    return 0


def _lines(status: ClusterStatus) -> list[str]:
    states = ", ".join(f"{count} {state}" for state, count in status.states.items())
    rows = [
        _COLUMNS.format(one.replica, one.node[:12], one.load, one.slots, one.held_tokens)
        for one in status.replicas
    ]
    heading = _COLUMNS.format("replica", "machine", "load", "slots", "held tokens")
    return [f"{status.deployment}: {status.status} ({states})", heading, *rows]


CLUSTER = Command(
    name="cluster",
    help="show the replicas of a cluster",
    run=_cluster,
    declare=_declare,
    settings="taken",
)
