"""``maple sessions``: what is saved in the folder of sessions."""

from __future__ import annotations

import argparse
import json
import sys
import time

import attrs

from maple.command import Command, CommandParser, read_configuration
from maple.errors import CommandFailed

_COLUMNS = "{:<32} {:<12} {:>8} {:>10}  {:<16} {}"


def _declare(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _sessions(given: argparse.Namespace) -> int:
    from maple.engine.session_files import SessionFiles  # noqa: PLC0415 -- numpy: only for this

    folder = read_configuration(given).settings.session_dir
    if folder is None:
        raise CommandFailed("no sessions are saved: MAPLE_SESSION_DIR is unset (--session-dir)")
    if not folder.is_dir():
        raise CommandFailed(f"{folder} is no folder that can be read")
    found = [
        {"owner": owner, **attrs.asdict(each)}
        for owner, each in SessionFiles(folder, max_bytes=0).manifests()
    ]
    if given.json:
        sys.stdout.write(f"{json.dumps(found, indent=2)}\n")
        return 0
    lines = [_COLUMNS.format("session", "owner", "tokens", "MB", "saved", "model")]
    for one in found:
        saved = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["created_at"]))
        size = f"{one['bytes'] / 1e6:.1f}"
        lines.append(
            _COLUMNS.format(
                one["session_id"][:32], one["owner"][:12], one["tokens"], size, saved, one["model"]
            )
        )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


SESSIONS = Command(
    name="sessions",
    help="list the sessions that are saved",
    run=_sessions,
    declare=_declare,
    settings="taken",
    epilog="An owner is a hash of the key's name. DELETE /v1/sessions/ID removes one.",
)
