"""The engine under many users on a full-size checkpoint, and what HTTP adds to it.

    python benchmarks/engine/full_size.py MODEL [--only PART ...] [--threads 2] [--json OUT]
    python benchmarks/engine/full_size.py --quick            # every part on the embedded model, in a minute

    batch    eight streams together against one alone
    pause    a running stream while a long prompt joins           [--picture pauses.svg]
    loaded   decoding beside a busy loop on every core            [--rounds 5]
    http     the real server against the engine: rate of a stream, and the way to the first token   [--rounds 5]
    reuse    a conversation's second turn against its first
    restart  save, SIGKILL, load, go on
    prefix   an agent's prompt cold, and from the disk after a SIGKILL   [--folder .]
    memory   more long prompts at once than fit                   [--prompts 32] [--kv-mb 1024]

MODEL is a folder that the native kernels load. Prompts are random, so that the machine's speed is all that counts.
Every part starts an engine of its own, one at a time; ``http`` also starts a server, which needs the otel extra.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib

from prefixes import cold, prefix
from rig import QUICK, Sizes
from serving import http
from streams import batch, loaded, memory, pause
from turns import before, restart, reuse

from maple.choose_engine import DEMO_FOLDER
from maple.observe import logs

PARTS = {
    "batch": batch,
    "pause": pause,
    "loaded": loaded,
    "http": http,
    "reuse": reuse,
    "restart": restart,
    "prefix": prefix,
    "memory": memory,
}


def main() -> None:
    options = arguments()
    logs.configure(level="warning", format="auto")
    if options.before:
        asyncio.run(before(options, options.before))
    if options.cold:
        asyncio.run(cold(options, options.cold))
    found = {}
    for name in options.only:
        found[name] = asyncio.run(PARTS[name](options))
        print(json.dumps({name: found[name]}, indent=1), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("model", nargs="?", help="a folder; with --quick the embedded model by default")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=tuple(PARTS), metavar="PART")
    parser.add_argument("--quick", action="store_true", help="short prompts and few tokens")
    parser.add_argument("--threads", type=int, default=0, help="the physical cores by default")
    parser.add_argument("--rounds", type=int, help="repetitions of which medians are taken")
    parser.add_argument("--prompts", type=int, help="how many at once")
    parser.add_argument("--kv-mb", type=int, default=1024, help="memory for keys and values")
    parser.add_argument("--json", type=pathlib.Path, help="write everything there")
    parser.add_argument("--picture", type=pathlib.Path, help="draw the pauses there")
    parser.add_argument(
        "--folder", type=pathlib.Path, help="where blocks are written: the disk to be measured"
    )
    parser.add_argument("--cold", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--before", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model is None and not options.quick:
        parser.error("which MODEL? --quick takes the embedded one")
    options.model = options.model or str(DEMO_FOLDER)
    options.sizes = QUICK if options.quick else Sizes()
    options.rounds = options.rounds or options.sizes.rounds
    options.prompts = options.prompts or options.sizes.prompts
    return options


if __name__ == "__main__":
    main()
