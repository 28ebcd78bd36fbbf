"""``maple pack SRC DST``: bring a checkpoint into the layout that loads at once."""

from __future__ import annotations

import argparse
import sys
import time

from maple.command import Command, CommandParser, home_path, positive
from maple.errors import CommandFailed
from maple.observe import logs


def _declare(parser: CommandParser) -> None:
    parser.add_argument("source", metavar="SRC", help="folder of any spelling, or hub id")
    parser.add_argument("destination", metavar="DST", type=home_path, help="folder to write")
    parser.add_argument("--revision", default="main", help="branch, tag or commit of a hub checkpoint")
    parser.add_argument(
        "--head-dtype",
        default="auto",
        choices=("auto", "int8"),
        help="int8 narrows a bf16 head to half its size",
    )
    parser.add_argument("--threads", type=positive, help="threads that pack; the physical cores by default")
    parser.add_argument("--force", action="store_true", help="replace a pack that is there")


def _pack(given: argparse.Namespace) -> int:
    """Pack, and say in one line what was written."""
    from maple.checkpoint.errors import LoadError  # noqa: PLC0415
    from maple.checkpoint.progress import progress_reporter  # noqa: PLC0415
    from maple.engine.cores import physical_cores  # noqa: PLC0415 -- numpy and the kernels: only for this
    from maple.native.library import Unavailable, available  # noqa: PLC0415
    from maple.native.pack import pack  # noqa: PLC0415

    logs.configure(level="info", format="auto")
    kernels = available()
    if isinstance(kernels, Unavailable):
        raise CommandFailed(f"packing needs the native kernels: {kernels.reason}")
    started = time.monotonic()
    try:
        report = pack(
            given.source,
            given.destination,
            revision=given.revision,
            head_dtype=given.head_dtype,
            threads=given.threads or physical_cores(),
            replace=given.force,
            progress=progress_reporter(words="Packing"),
            cancelled=lambda: False,
        )
    except LoadError as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{given.destination.name} could not be written: {error.strerror}") from error
    seconds = time.monotonic() - started
    size = f"{report.bytes / 1e9:.2f} GB"
    done = (
        f"packed {size} into {given.destination} in {seconds:.1f} s"
        if report.written
        else "is packed already"
    )
    sys.stdout.write(f"{done}\n" if report.written else f"{given.destination} {done}\n")
    return 0


PACK = Command(
    name="pack",
    help="pack a checkpoint into a folder that loads at once",
    run=_pack,
    declare=_declare,
)
