"""Talking to the model on the chat page: streams, thoughts, tools, stopping, changing one's mind."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from tests.ui.conftest import Page, Server


def test_an_answer_grows_while_it_comes_in(page: Page) -> None:
    """The text is longer each time one looks, long before the end."""
    page.send("count slowly")
    lengths = [0]
    for _ in range(3):
        page.until(lambda: len(page.text(".assistant .body")) > lengths[-1])
        lengths.append(len(page.text(".assistant .body")))
    assert page.one("#log").get_attribute("aria-busy") == "true"
    assert "about" in page.text(".assistant .rate")
    page.picture("streaming")
    page.click("#stop")
    page.settled("Stopped.")


def test_stopping_frees_the_servers_slot(page: Page) -> None:
    """The server cancels, the page keeps what there was and says that it was stopped."""
    page.until(lambda: page.server.stats()["running"] == 0)
    cancelled = page.server.stats()["cancelled"]
    page.send("count slowly")
    page.until(lambda: "2 3" in page.text(".assistant .body"))
    page.one("#prompt").send_keys(Keys.ESCAPE)
    page.settled("Stopped.")
    page.until(
        lambda: page.server.stats()["running"] == 0 and page.server.stats()["cancelled"] == cancelled + 1
    )
    assert "0 1 2 3" in page.text(".assistant .body")
    assert "stopped" in page.text(".assistant .rate")
    assert page.ask("hello") == "391 is the answer."


def test_reasoning_is_folded_with_its_length_and_seconds(page: Page) -> None:
    """A click unfolds it, another folds it again; the answer stands beside it."""
    assert page.ask("what is 17 × 23?") == "391 is the answer."
    assert page.text(".reasoning .text") == "We add them."
    label = page.text(".reasoning summary")
    assert re.fullmatch(r"Thought for \d+\.\d s · [34] tokens", label)
    text = page.one(".reasoning .text")
    assert not text.is_displayed()
    page.click(".reasoning summary")
    assert text.is_displayed()
    page.click(".reasoning summary")
    assert not text.is_displayed()


def test_unfolded_thoughts_stay_so_while_they_grow(page: Page) -> None:
    """The last words show below the fold; who unfolds it mid-stream reads on, with the focus where it was."""
    page.send("think slowly")
    page.until(lambda: "thought 2" in page.text(".peek"))
    assert page.one(".peek").is_displayed()
    page.picture("thinking")
    page.click(".reasoning summary")
    seen = len(page.text(".reasoning .text"))
    page.until(lambda: len(page.text(".reasoning .text")) > seen + 20)
    assert page.one(".reasoning .text").is_displayed()
    assert not page.one(".peek").is_displayed()
    assert page.driver.switch_to.active_element.tag_name == "summary"
    page.click("#stop")
    page.settled("Stopped.")


def test_tools_are_answered_by_hand(page: Page) -> None:
    """Each call is shown with its arguments; when the last has its result, the next turn begins."""
    page.set(tools='[{"type": "function", "function": {"name": "get_weather"}}]')
    page.ask("weather and time please", status="asks for a tool")
    assert page.texts(".call h3") == ["Calls get_weather", "Calls get_time"]
    assert page.texts(".call pre")[0] == '{\n  "city": "Oslo"\n}'
    page.picture("tools")
    page.requests()
    page.one(".call textarea").send_keys('{"celsius": 4}')
    page.click(".call:first-of-type button", "Send result")
    page.until(lambda: page.texts(".tool .body") == ['{"celsius": 4}'])
    page.driver.switch_to.active_element.send_keys("two o'clock")
    page.click(".call button", "Send result")
    page.until(lambda: len(page.all(".assistant")) == 2)
    page.settled("asks for a tool")
    assert page.texts(".tool .body") == ['{"celsius": 4}', "two o'clock"]
    [sent] = [request["body"] for request in page.requests()]
    ids = [call["id"] for call in sent["messages"][1]["tool_calls"]]
    assert [(one["role"], one.get("tool_call_id")) for one in sent["messages"]] == [
        ("user", None), ("assistant", None), ("tool", ids[0]), ("tool", ids[1]),
    ]  # fmt: skip
    assert sent["tools"][0]["function"]["name"] == "get_weather"


def test_a_failure_is_told_and_the_turn_can_be_made_again(page: Page) -> None:
    """The server's own words, beside what had come; nothing is lost."""
    page.ask("break", status="The answer failed.")
    assert page.text(".assistant .error") == "generation failed"
    assert page.text(".assistant .body").startswith("An answer that")
    page.click(".assistant .foot button", "Regenerate")
    page.settled("The answer failed.")
    assert len(page.all(".assistant")) == 1
    assert page.text(".assistant .versions") == "2/2"


def test_an_answer_that_is_late_shows_how_long_it_has_been_waited_for(page: Page) -> None:
    """In the queue, or while a long prompt is read, nothing arrives: the page still says that it waits."""
    page.send("late")
    page.until(lambda: page.text(".assistant .rate").startswith("waiting · "))
    page.settled()
    assert page.text(".assistant .body") == "At last."


def test_a_server_that_is_gone_is_told_and_nothing_is_lost(
    serve: Callable[..., Server], open_page: Callable[..., AbstractContextManager[Page]]
) -> None:
    """In the middle of an answer, and before one; the page and its conversation stay."""
    server = serve()
    with open_page(server) as page:
        page.send("count slowly")
        page.until(lambda: "2 3" in page.text(".assistant .body"))
        server.process.kill()
        page.settled("The answer failed.")
        assert page.text(".assistant .error") == "The connection ended before the answer did."
        assert "0 1 2 3" in page.text(".assistant .body")
        page.ask("hello", status="The answer failed.")
        assert page.text(".assistant .error") == "The server cannot be reached."
        assert all("net::ERR_" in text for text in page.complaints())


def test_a_reload_keeps_the_conversations(page: Page) -> None:
    """Also one that was in the middle of an answer: it keeps what it had."""
    page.ask("what is 17 × 23?")
    page.click("#new")
    page.send("count slowly")
    page.until(lambda: "2 3" in page.text(".assistant .body"))
    page.open()
    assert page.texts("#conversations .open") == ["count slowly", "what is 17 × 23?"]
    assert "0 1 2 3" in page.text(".assistant .body")
    assert "stopped" in page.text(".assistant .rate")
    page.all("#conversations .open")[1].click()
    assert page.texts(".body") == ["what is 17 × 23?", "391 is the answer."]
    assert page.text("#title") == "what is 17 × 23?"


def test_markdown_is_shown_as_it_is_meant(page: Page) -> None:
    """Headings, lists, tables, links and code with its language and a way to copy it."""
    page.ask("show me markdown")
    body = page.one(".assistant .body")
    assert page.texts(".body h4") == ["Adding numbers"]
    assert page.texts(".body > ol > li > ul > li") == ["carry, if there is one"]
    assert len(page.all(".body > ol > li")) == 3
    assert page.texts(".body .block-head span") == ["python"]
    assert page.text(".body .block code") == "def add(a: int, b: int) -> int:\n    return a + b"
    assert page.texts(".body td") == ["1", "2", "3"]
    assert page.texts(".body blockquote") == ["Quoted for good measure."]
    link = body.find_element(By.CSS_SELECTOR, "a")
    assert (link.get_attribute("href"), link.get_attribute("rel")) == (
        "https://example.org/", "noopener noreferrer nofollow",
    )  # fmt: skip
    page.click(".block-head button", "Copy")
    page.until(lambda: page.text(".block-head button") == "Copied")


def test_context_in_use_and_pace_are_shown(page: Page) -> None:
    """Tokens and tokens a second beside the answer; the share of the window in the composer."""
    page.ask("hello")
    rate = page.text(".assistant .rate")
    assert rate.startswith("9 tokens · ")
    assert rate.endswith(" tokens/s")
    assert page.text("#meter-text").endswith(" tokens")
    assert float(page.one("#meter").get_attribute("value") or 0) > 9
