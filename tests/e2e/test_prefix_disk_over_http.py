"""Prefixes on disk through whole servers: found after a kill, and no disk's failure reaches a request."""

from __future__ import annotations

import pathlib
import signal
from typing import Any

import pytest
from maple_testing.guard import until

STORY = "Once upon a time there was a maple tree. " * 30
SICK = """
import errno, os, re, sys, time

how, part = os.environ["DISK"].split("-")
NAMES = {"write": r"[.][0-9a-f]{16}[.]new", "read": "[0-9a-f]{32}"}

def sick(event, arguments):
    if event == "open" and re.fullmatch(NAMES[part], str(arguments[0])):
        if how == "hung":
            time.sleep(1e6)
        elif how == "slow":
            time.sleep(0.01)
        else:
            raise OSError(getattr(errno, how), os.strerror(getattr(errno, how)))

sys.addaudithook(sick)
"""
"""In the server's process: opening a block's file fails, takes for ever, or long."""


@pytest.fixture
def settings(tmp_path: pathlib.Path) -> dict[str, str]:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(SICK)
    return {
        "MAPLE_PREFIX_DIR": str(tmp_path / "prefixes"),
        "MAPLE_KV_CACHE_MB": "64",
        "MAPLE_DRAIN_TIMEOUT": "1",
    }


def said(server: Any, text: str = STORY) -> tuple[Any, int]:
    """The greedy message, and how much of its prompt was reused."""
    answer = server.chat(text, temperature=0, max_tokens=12)
    assert answer.status == 200, answer.body
    usage = answer.json["usage"]
    return answer.json["choices"][0]["message"], usage["prompt_tokens_details"]["cached_tokens"]


def until_all_is_written(server: Any) -> None:
    """Whole blocks, and sliding parts whose number is the engine's affair: no more came between two looks."""
    seen = [0]

    def quiet() -> bool:
        stats = server.stats()
        seen.append(stats["prefix_disk_written_blocks"])
        return bool(seen[-1] == seen[-2] and seen[-1] >= stats["prompt_tokens"] // 64)

    until(quiet, pause=2.0)


def test_a_killed_server_s_prefixes_are_found(start_server: Any) -> None:
    """Without a save, at the extended level by default; figures tell of it, and a blank setting turns it off."""
    settings = {"MAPLE_API_LEVEL": "extended"}
    first = start_server("--demo", settings=settings)
    message, none = said(first)
    assert none == 0
    until_all_is_written(first)
    first.expected_code = -signal.SIGKILL
    first.stop(signal.SIGKILL)
    second = start_server("--demo", settings=settings)
    again, found = said(second)
    assert (again, found > 100) == (message, True)
    assert second.stats()["prefix_disk_read_blocks"] > 0
    assert "maple_prefix_disk_read_blocks_total" in second.request("GET", "/metrics").body.decode()
    third = start_server("--demo", settings={**settings, "MAPLE_PREFIX_DIR": ""})
    assert said(third) == (message, 0)


@pytest.mark.parametrize(
    "disk", ["ENOSPC-write", "EROFS-write", "EIO-read", "hung-write", "hung-read", "slow-read", "slow-write"]
)
def test_requests_go_on_beside_a_sick_disk(
    start_server: Any, settings: dict[str, str], tmp_path: pathlib.Path, disk: str
) -> None:
    """Full, read-only, broken, hung or slow: the same answers, one warning at most, and an end in time."""
    sound = start_server("--demo", settings=settings)
    message, _ = said(sound)
    sound.stop()
    server = start_server("--demo", settings={**settings, "PYTHONPATH": str(tmp_path / "hook"), "DISK": disk})
    assert said(server)[0] == message
    assert said(server, f"Another. {STORY}")[0] == said(server, f"Another. {STORY}")[0]
    server.tell()
    server.process.wait()
    server.expected_code = server.process.returncode
    assert server.expected_code in (0, 1)
    events = [line["event"] for line in server.events]
    assert events.count("prefixes.disk_unusable") == (not disk.startswith("slow"))
