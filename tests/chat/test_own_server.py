"""The server that a conversation starts for itself ends with it, whenever that is."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import threading
from typing import Any

import pytest
from maple_testing.guard import HANG_GUARD

from maple.chat import child
from maple.errors import CommandFailed

NOWHERE = str(pathlib.Path("no") / "such" / "folder")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Every child, each of which is made while Ctrl-C comes."""
    processes: list[subprocess.Popen[str]] = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            processes.append(self)
            if threading.current_thread() is threading.main_thread():
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    return processes


def test_an_interrupt_while_the_child_is_made_ends_it(made: list[subprocess.Popen[str]]) -> None:
    """It is an interrupt still, and the way of interrupts is as before."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), child.own_server(["--demo"]):
        pytest.fail("it went on")
    assert made[0].poll() is not None
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_may_have_a_server_too(made: list[subprocess.Popen[str]]) -> None:
    """Where no interrupt can come nothing is held back."""
    said: list[str] = []

    def start() -> None:
        try:
            with child.own_server(["--model-path", NOWHERE]):
                said.append("started")
        except CommandFailed as failed:
            said.append(str(failed))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(HANG_GUARD)
    assert len(said) == 1
    assert said[0] == "the server could not load its model: model folder folder does not exist"
    assert made[0].poll() is not None
