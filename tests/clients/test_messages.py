"""Anthropic's own clients on ``/v1/messages``: Claude Code edits a file, the JavaScript SDK does all it offers."""

from __future__ import annotations

import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

from tests.clients.test_tool_loops import at, check_recorded, loop

if TYPE_CHECKING:
    from tests.clients.conftest import RunClient, StartScript

FOLDER = pathlib.Path(__file__).parent
GRAIN = 64
"""The scripted engine's prefixes are so many tokens long, or a multiple."""


def test_claude_code_reads_and_edits_a_file(
    start_script: StartScript, run_client: RunClient, clients: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Its Read and Edit run on what the model calls; every later request finds all but its new part in the cache."""
    file = tmp_path / "home" / "work" / "place.txt"
    read, edit = loop("Read", {"file_path": str(file)})[:1], {"old_string": "cold", "new_string": "warm"}
    recorder = start_script([*read, *loop("Edit", {}, {"file_path": str(file), **edit})[1:]])
    printed = run_client(
        *("bash", "-e", "-c", at(recorder, "claude.sh")),
        files={"work/place.txt": "Oslo is cold.\n"},
        PATH=f"{clients / 'npm' / 'claude' / 'node_modules' / '.bin'}:{os.environ['PATH']}",
    )
    assert file.read_text("utf-8") == "Oslo is warm.\n"
    events = [json.loads(line) for line in printed.splitlines()]
    assert events[-1]["result"] == "All done."
    read_, edited, told = _usages(events)
    for before, after in ((read_, edited), (edited, told)):
        known = before["input_tokens"] + before["cache_read_input_tokens"]
        assert after["cache_read_input_tokens"] > known - GRAIN
    check_recorded("claude-code", recorder)


def _usages(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each message's, once: it comes block by block."""
    messages = [event["message"] for event in events if event["type"] == "assistant"]
    return list({message["id"]: message["usage"] for message in messages}.values())


def test_the_javascript_sdk_does_what_its_page_shows(
    start_script: StartScript, run_client: RunClient, clients: pathlib.Path
) -> None:
    """Tools over three turns, whole and streamed, with thinking; counts, typed errors, an abort, the listing."""
    recorder = start_script(loop("look", {"place": "one"}, {"place": "two"}))
    script = clients / "npm" / "anthropic" / "sample.mjs"  # packages are looked for beside it
    script.write_text((FOLDER / "anthropic_sdk.mjs").read_text("utf-8"), "utf-8")
    assert json.loads(run_client("node", str(script), str(recorder.port))) == {
        "kinds": ["thinking+tool_use", "thinking+tool_use", "thinking+text"],
        "streamed": ['Step 0.{"place": "one"}', 'Step 1.{"place": "two"}', "I am through.All done."],
        "counted": True,
        "refused": [True, 404],
        "aborted": True,
        "models": ["model"],
    }
    check_recorded("anthropic-js", recorder)
