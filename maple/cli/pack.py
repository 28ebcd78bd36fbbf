"""`maple pack SRC DST`: bring a checkpoint into the layout that loads at once."""

from __future__ import annotations

import pathlib
import sys
import time

from maple.cli.parsing import CommandFailed, CommandParser, positive
from maple.observe import logs

__all__ = ["DESCRIPTION", "run"]

DESCRIPTION = "pack a checkpoint into a folder that loads at once"


def run(words: list[str]) -> int:
    """Pack, and say in one line what was written."""
    parser = CommandParser(prog="maple pack", allow_abbrev=False, description=DESCRIPTION)
    parser.add_argument("source", metavar="SRC", help="folder of any spelling, or hub id")
    parser.add_argument("destination", metavar="DST", type=pathlib.Path, help="folder to write")
    parser.add_argument("--revision", default="main", help="branch, tag or commit of a hub checkpoint")
    parser.add_argument(
        "--head-dtype",
        default="auto",
        choices=("auto", "int8"),
        help="int8 narrows a bf16 head to half its size",
    )
    parser.add_argument("--threads", type=positive, help="threads that pack; the physical cores by default")
    parser.add_argument("--force", action="store_true", help="replace a pack that is there")
    given = parser.parse_args(words)
    return _pack(
        given.source, given.destination, given.revision, given.head_dtype, given.threads, force=given.force
    )


def _pack(
    source: str,
    destination: pathlib.Path,
    revision: str,
    head_dtype: str,
    threads: int | None,
    *,
    force: bool,
) -> int:
    from maple.checkpoint.errors import LoadError  # noqa: PLC0415
    from maple.checkpoint.progress import progress_reporter  # noqa: PLC0415
    from maple.engine.runner import physical_cores  # noqa: PLC0415 -- numpy and the kernels: only for this
    from maple.native.library import Unavailable, available  # noqa: PLC0415
    from maple.native.pack import pack  # noqa: PLC0415

    logs.configure(level="info", format="auto")
    kernels = available()
    if isinstance(kernels, Unavailable):
        raise CommandFailed(f"packing needs the native kernels: {kernels.reason}")
    started = time.monotonic()
    try:
        report = pack(
            source,
            destination,
            revision=revision,
            head_dtype=head_dtype,
            threads=threads or physical_cores(),
            replace=force,
            progress=progress_reporter(words="Packing"),
            cancelled=lambda: False,
        )
    except LoadError as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        raise CommandFailed(f"{destination.name} could not be written: {error.strerror}") from error
    seconds = time.monotonic() - started
    size = f"{report.bytes / 1e9:.2f} GB"
    done = f"packed {size} into {destination} in {seconds:.1f} s" if report.written else "is packed already"
    sys.stdout.write(f"{done}\n" if report.written else f"{destination} {done}\n")
    return 0
