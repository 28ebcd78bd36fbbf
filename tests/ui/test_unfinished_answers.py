"""Answers that did not come to their end, or have not begun: the page says why, and offers the ways on."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from maple.choose_engine import DEMO_FOLDER

if TYPE_CHECKING:
    from tests.ui.conftest import Page, Server

WAITS = """
import os, sys, time

def wait(event, arguments):
    if event == "open" and str(arguments[0]).endswith("pack/model.safetensors"):
        while not os.path.exists(os.environ["GO_ON"]):
            time.sleep(0.05)

sys.addaudithook(wait)
"""
"""In the server's process: the weights cannot be opened until a file is there."""


def cut(page: Page, limit: str) -> None:
    """A question whose answer is cut after so many tokens; the limit is lifted after that."""
    page.set(max_tokens=limit)
    page.ask("What is 17 * 23?")


def ways(page: Page) -> list[str]:
    return page.texts(".cut button")


def test_an_answer_that_is_cut_while_thinking_says_so(demo_page: Page) -> None:
    """And offers four ways on."""
    cut(demo_page, "9")
    assert demo_page.text(".cut p") == "The limit of tokens cut this while it was thinking."
    assert ways(demo_page) == ["Continue", "Answer now", "More tokens", "Without thinking"]
    for scheme in ("light", "dark"):
        demo_page.emulate(scheme)
        demo_page.picture(f"cut-{scheme}")
    demo_page.emulate()


@pytest.mark.parametrize("way", ["Continue", "More tokens"])
def test_thinking_goes_on(demo_page: Page, way: str) -> None:
    """From where it was, once more under the limit or with all the tokens that fit."""
    cut(demo_page, "9")
    begun = demo_page.text(".reasoning .text")
    demo_page.requests()
    demo_page.click(".cut button", way)
    demo_page.until(lambda: len(demo_page.text(".reasoning .text")) > len(begun))
    demo_page.settled()
    assert demo_page.text(".reasoning .text").startswith(begun)
    [sent] = demo_page.requests()
    assert sent["body"]["continue_final_message"] is True
    assert sent["body"]["messages"][-1]["reasoning_content"] == begun
    assert (demo_page.text(".assistant .body") == "") == (way == "Continue")
    assert len(demo_page.all(".assistant")) == 1
    if way == "More tokens":
        assert "391" in demo_page.text(".assistant .body")


def test_the_answer_is_asked_for_at_once(demo_page: Page) -> None:
    """After what was thought by then."""
    cut(demo_page, "20")
    demo_page.click(".cut button", "Answer now")
    demo_page.until(lambda: demo_page.text(".assistant .body"))
    demo_page.settled()


def test_without_thinking_is_a_branch(demo_page: Page) -> None:
    """The thoughts stay on the other one."""
    cut(demo_page, "9")
    demo_page.click(".cut button", "Without thinking")
    demo_page.until(lambda: demo_page.text(".assistant .body"))
    demo_page.settled()
    assert demo_page.texts(".versions") == ["2/2"]
    assert demo_page.text(".reasoning .text") == ""


def test_a_stopped_answer_can_be_continued(page: Page) -> None:
    """The recording begins anew, behind what was there."""
    page.send("count slowly")
    page.until(lambda: "2 3" in page.text(".assistant .body"))
    page.click("#stop")
    page.settled("Stopped.")
    assert ways(page) == ["Continue"]
    page.click(".cut button")
    page.until(lambda: page.text(".assistant .body").count("0 1 2") == 2)
    page.click("#stop")
    page.settled("Stopped.")


def test_a_question_that_was_never_answered_is(page: Page) -> None:
    """After a reload, or when its answer was deleted."""
    page.ask("hello")
    page.all(".foot button[aria-label='Delete this message']")[-1].click()
    page.click(".user .foot button", "Answer")
    page.settled()
    assert page.texts(".assistant .body") == ["391 is the answer."]


def test_the_place_in_the_queue_is_shown(
    serve: Callable[..., Server], open_page: Callable[..., AbstractContextManager[Page]]
) -> None:
    """Of a server that answers one at a time; the question is sent when its turn comes."""
    with open_page(serve()) as page:
        page.send("count slowly")
        page.until(lambda: "2 3" in page.text(".assistant .body"))
        page.click("#new")
        page.send("hello")
        page.until(lambda: page.text(".assistant .rate").startswith("place 1 in the queue · "))
        page.picture("in-the-queue")
        page.click("#conversations .open", "count slowly")
        page.click("#stop")
        page.click("#conversations .open", "hello")
        page.settled()
        assert page.text(".assistant .body") == "391 is the answer."


def test_a_server_that_is_full_is_asked_again(
    serve: Callable[..., Server], open_page: Callable[..., AbstractContextManager[Page]]
) -> None:
    """The question is kept meanwhile, and the page says why it waits."""
    with open_page(serve(MAPLE_MAX_QUEUE_DEPTH="0")) as page:
        page.send("count slowly")
        page.until(lambda: "2 3" in page.text(".assistant .body"))
        page.click("#new")
        page.send("hello")
        page.until(lambda: "the server is busy: your question is kept" in page.text(".assistant .rate"))
        page.click("#conversations .open", "count slowly")
        page.click("#stop")
        page.click("#conversations .open", "hello")
        page.settled()
        assert page.text(".assistant .body") == "391 is the answer."
        assert all("503" in text for text in page.complaints())


def test_a_question_asked_while_the_model_loads_is_answered(
    serve: Callable[..., Server],
    open_page: Callable[..., AbstractContextManager[Page]],
    tmp_path: pathlib.Path,
) -> None:
    """It is kept, the page says that the model loads, and it is sent when the model is there."""
    pack = tmp_path / "pack"
    command = [sys.executable, "-m", "maple", "pack", str(DEMO_FOLDER), str(pack)]
    subprocess.run(command, check=True, capture_output=True)
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(WAITS, "utf-8")
    hook = {"PYTHONPATH": str(tmp_path / "hook"), "GO_ON": str(tmp_path / "go-on")}
    server = serve("--model-path", str(pack), ready="server.listening", **hook)
    with open_page(server) as page:
        page.until(lambda: "The model is loading." in page.text("#notice-text"))
        page.send("What is 17 * 23?")
        page.until(lambda: "the model is loading" in page.text(".assistant .rate"))
        page.picture("loading")
        (tmp_path / "go-on").touch()
        page.settled()
        assert "391" in page.text(".assistant .body")
        assert all("503" in text for text in page.complaints())


def test_an_answer_is_asked_for_while_it_thinks(page: Page) -> None:
    """The stream goes on with what the recording has behind its thoughts."""
    page.send("think slowly")
    page.until(lambda: "thought 2" in page.text(".reasoning .text"))
    page.picture("thinking-now")
    page.click(".now")
    page.settled()
    assert page.text(".assistant .body") == "At last."
