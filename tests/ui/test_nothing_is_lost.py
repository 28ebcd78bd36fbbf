"""Whatever was asked, answered, typed or deleted on the chat page can be had again."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from tests.ui.conftest import Page

FULL = """
IDBObjectStore.prototype.put = () => { throw new DOMException("There is no room.", "QuotaExceededError"); };
"""
"""What a browser does whose space is full. Chromium's own quota holds some seconds later only."""
OLD = {
    "id": "old",
    "title": "from before",
    "updated": 5,
    "messages": [{"role": "user", "content": "an old question"}, {"role": "assistant", "content": "kept"}],
}
"""A conversation as the page's first version kept it."""


def tabs(page: Page) -> Callable[[int], None]:
    """A second tab on the same page; the answer switches to one of the two."""
    handles = [page.driver.current_window_handle]
    page.driver.switch_to.new_window("tab")
    handles.append(page.driver.current_window_handle)
    page.open()
    return lambda index: page.driver.switch_to.window(handles[index])


def stored(page: Page) -> int:
    """How many conversations the browser's database shows after a reload."""
    page.open()
    return len(page.texts("#conversations .open"))


def test_an_edit_is_a_branch(page: Page) -> None:
    """The old text and all that followed it stay on a branch of their own; leaving the editor changes nothing."""
    page.ask("first question")
    page.ask("another")
    page.click(".user .foot button", "Edit")
    page.driver.switch_to.active_element.send_keys(" thing", Keys.ESCAPE)
    assert page.texts(".user .body") == ["first question", "another"]
    page.click(".user .foot button", "Edit")
    area = page.driver.switch_to.active_element
    area.clear()
    area.send_keys("question two", Keys.ENTER)
    page.until(lambda: page.texts(".user .body") == ["first question", "question two"])
    page.settled()
    assert page.text(".assistant .body") == "Second answer."
    assert page.texts(".versions") == ["2/2"]
    page.open()
    page.click(".step", "‹")
    assert page.texts(".body") == ["first question", "391 is the answer.", "another", "391 is the answer."]
    assert page.texts(".versions") == ["1/2"]


def test_an_answer_is_made_again_beside_the_old_one(page: Page) -> None:
    """From the same question; both can be looked at, and the one that is shown is gone on with."""
    page.ask("hello")
    page.requests()
    page.click(".assistant .foot button", "Regenerate")
    page.until(lambda: page.text(".versions") == "2/2")
    [sent] = page.requests()
    assert [(one["role"], one["content"]) for one in sent["body"]["messages"]] == [("user", "hello")]
    page.click(".step", "‹")
    page.ask("two")
    page.click(".step", "›")
    assert page.texts(".user .body") == ["hello"]
    page.click(".step", "‹")
    assert page.texts(".user .body") == ["hello", "two"]
    page.picture("branches")


def test_an_answer_goes_on_while_another_conversation_is_open(page: Page) -> None:
    """The list shows that it comes in; it is there when one comes back."""
    page.send("count slowly")
    page.until(lambda: "2 3" in page.text(".assistant .body"))
    page.click("#new")
    assert page.ask("hello") == "391 is the answer."
    assert page.all("#conversations .answering")
    page.click("#conversations .open", "count slowly")
    page.until(lambda: "20 21" in page.text(".assistant .body"))
    page.click("#stop")
    page.settled("Stopped.")
    assert not page.all("#conversations .answering")


def test_questions_are_queued_and_sent(page: Page) -> None:
    """One that is asked while an answer comes in waits for its end; it can be taken back until then."""
    page.send("pause")
    page.send("two")
    page.send("never sent")
    page.until(lambda: page.texts(".queued .body") == ["two", "never sent"])
    page.picture("queued")
    page.click(".queued button", "Remove")
    assert page.one("#prompt").get_attribute("value") == "never sent"
    page.until(lambda: page.texts(".assistant .body") == ["At last.", "Second answer."])
    page.settled()
    assert page.texts(".user .body") == ["pause", "two"]


def test_what_is_queued_comes_back_when_the_answer_is_stopped(page: Page) -> None:
    """Nothing would send it any more: it is in the box again."""
    page.send("count slowly")
    page.until(lambda: "2 3" in page.text(".assistant .body"))
    page.send("two")
    page.until(lambda: page.texts(".queued .body") == ["two"])
    page.click("#stop")
    page.settled("Stopped.")
    assert page.one("#prompt").get_attribute("value") == "two"
    assert page.texts(".queued .body") == []


def test_drafts_outlive_a_reload(page: Page) -> None:
    """Each conversation has its own, and so has the one that has not begun; a tool's result too."""
    page.ask("weather and time please", status="asks for a tool")
    page.one("#prompt").send_keys("not yet")
    page.one(".call textarea").send_keys("four degrees")
    page.click("#new")
    page.one("#prompt").send_keys("nor this")
    page.open()
    assert page.one("#prompt").get_attribute("value") == "not yet"
    assert page.one(".call textarea").get_attribute("value") == "four degrees"
    page.click("#new")
    assert page.one("#prompt").get_attribute("value") == "nor this"


def test_a_message_is_deleted_and_brought_back(page: Page) -> None:
    """What follows it stays; the next request does not have it."""
    page.ask("hello")
    page.ask("two")
    page.all(".foot button[aria-label='Delete this message']")[1].click()
    assert page.texts(".body") == ["hello", "two", "Second answer."]
    page.requests()
    page.ask("more")
    sent = page.requests()[0]["body"]["messages"]
    assert [one["content"] for one in sent] == ["hello", "two", "Second answer.", "more"]
    page.all(".foot button[aria-label='Delete this message']")[-1].click()
    page.click("#notice button", "Undo")
    assert page.texts(".user .body") == ["hello", "two", "more"]
    assert len(page.texts(".assistant .body")) == 2


def test_a_deleted_conversation_can_be_brought_back(page: Page) -> None:
    """Until then it is gone, after a reload too."""
    page.ask("hello")
    page.click("#conversations .remove")
    assert page.texts("#conversations .open") == []
    page.click("#notice button", "Undo")
    page.until(lambda: page.text(".assistant .body") == "391 is the answer.")
    assert stored(page) == 1
    page.click("#conversations .remove")
    page.until(lambda: stored(page) == 0)


def test_two_tabs_on_one_conversation_merge(page: Page) -> None:
    """What either asks is in both, as branches where they asked at the same place."""
    page.ask("hello")
    switch = tabs(page)
    page.ask("two")
    switch(0)
    page.until(lambda: page.texts(".user .body") == ["hello", "two"])
    page.send("count slowly")
    page.until(lambda: "2 3" in page.text(".assistant .body"))
    switch(1)
    page.until(lambda: page.texts(".user .body") == ["hello", "two", "count slowly"])
    page.driver.close()
    switch(0)
    page.click("#stop")
    page.settled("Stopped.")
    page.open()
    assert page.texts(".user .body") == ["hello", "two", "count slowly"]


def test_two_tabs_list_each_others_conversations(page: Page) -> None:
    """And take those away that the other deletes."""
    page.ask("asked in the first tab")
    switch = tabs(page)
    page.click("#new")
    page.ask("asked in the other tab")
    switch(0)
    expected = {"asked in the first tab", "asked in the other tab"}
    page.until(lambda: set(page.texts("#conversations .open")) == expected)
    switch(1)
    page.one("[aria-label='Delete asked in the other tab']").click()
    page.driver.close()
    switch(0)
    page.until(lambda: page.texts("#conversations .open") == ["asked in the first tab"])


def test_a_full_browser_is_told(page: Page) -> None:
    """What is shown goes on; it is said that it would not survive a reload."""
    page.js(FULL)
    page.ask("hello")
    page.until(lambda: "cannot keep more" in page.text("#notice-text"))
    assert page.text(".assistant .body") == "391 is the answer."


def test_conversations_of_the_first_version_are_taken_over(page: Page) -> None:
    """They lay in the browser's small store."""
    page.js("localStorage.setItem('maple.conversation.old', arguments[0])", json.dumps(OLD))
    page.open()
    page.click("#conversations .open", "from before")
    assert page.texts(".body") == ["an old question", "kept"]
    assert (
        page.js("return Object.keys(localStorage).filter((name) => name.startsWith('maple.conversation.'))")
        == []
    )
    assert stored(page) == 1


def downloaded(page: Page, folder: pathlib.Path, button: str) -> pathlib.Path:
    """The file that a button saves."""
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)}
    )
    before = set(folder.iterdir())
    page.click(button)

    def complete() -> list[pathlib.Path]:
        new = set(folder.iterdir()) - before
        return [file for file in new if file.suffix in (".json", ".md") and file.stat().st_size]

    found: list[pathlib.Path] = page.until(complete)
    return found[0]


def test_conversations_go_out_and_come_in(page: Page, tmp_path: pathlib.Path) -> None:
    """As JSON with every branch, and as Markdown; what came in stands beside what was there."""
    page.ask("hello")
    page.click(".assistant .foot button", "Regenerate")
    page.until(lambda: page.text(".versions") == "2/2")
    written = downloaded(page, tmp_path, "#export-markdown").read_text("utf-8")
    assert written.startswith("# hello\n\n## You\n\nhello\n\n## Maple\n\n<details>")
    assert written.endswith("391 is the answer.\n")
    file = downloaded(page, tmp_path, "#export-json")
    page.one("#import-file").send_keys(str(file))
    page.until(lambda: page.texts("#conversations .open") == ["hello", "hello"])
    assert page.text(".versions") == "2/2"
    assert page.text(".assistant .body") == "391 is the answer."
    assert stored(page) == 2


def test_a_file_that_holds_no_conversations_is_told(page: Page, tmp_path: pathlib.Path) -> None:
    """In words, whatever is wrong with it: nothing of it is taken."""
    circle = {"a": {"id": "a", "parent": "b", "message": {"role": "user", "content": "x"}}}
    circle["b"] = {**circle["a"], "id": "b", "parent": "a"}
    damaged = {"title": "t", "leaf": "a", "nodes": circle}
    strange = {
        "title": "t",
        "leaf": "a",
        "nodes": {"a": {"id": "a", "message": {"role": "user", "content": 5}}},
    }
    whole = {"format": "maple-conversations", "conversations": []}
    for text, words in (
        ("{", "not JSON"),
        ("[]", "holds no conversations"),
        (json.dumps({**whole, "conversations": [damaged]}), "damaged"),
        (json.dumps({**whole, "conversations": [strange]}), "damaged"),
    ):
        file = tmp_path / "file.json"
        file.write_text(text, "utf-8")
        page.one("#import-file").send_keys(str(file))
        page.until(lambda words=words: words in page.text("#notice-text"))  # type: ignore[misc]  # bound now
        page.click("#notice-close")
    assert page.texts("#conversations .open") == []


def test_conversations_are_found_and_named(page: Page) -> None:
    """By their titles and by what was said in them; Ctrl+K leads there."""
    page.ask("hello")
    page.click("#new")
    page.ask("two")
    page.one("#prompt").send_keys(Keys.CONTROL, "k")
    box = page.driver.switch_to.active_element
    assert box.get_attribute("id") == "search"
    box.send_keys("second ans")
    assert page.texts("#conversations .open") == ["two"]
    box.send_keys("x")
    assert page.one("#none-found").is_displayed()
    box.send_keys(Keys.ESCAPE)
    assert page.texts("#conversations .open") == ["two", "hello"]
    page.js("document.querySelector('#conversations .rename').click()")
    field = page.driver.switch_to.active_element
    field.clear()
    field.send_keys("Numbers", Keys.ENTER)
    assert page.texts("#conversations .open") == ["Numbers", "hello"]
    page.until(lambda: page.text("#title") == "Numbers")
    page.open()
    assert "Numbers" in page.texts("#conversations .open")


def test_text_files_are_attached(page: Page, tmp_path: pathlib.Path) -> None:
    """The model reads them in a fence; what is no text is refused in words. They are part of the draft."""
    text, binary = tmp_path / "notes.txt", tmp_path / "picture.png"
    text.write_text("one\n```\ntwo\n", "utf-8")
    binary.write_bytes(b"\x89PNG\x00\xff")
    page.one("#file").send_keys(f"{text}\n{binary}")
    page.until(lambda: page.texts("#files li") == ["notes.txt×"])
    assert "picture.png is not attached" in page.text("#notice-text")
    page.open()
    assert page.texts("#files li") == ["notes.txt×"]
    page.send("hello")
    page.settled()
    [sent] = page.requests()
    assert sent["body"]["messages"][0]["content"] == "notes.txt:\n````\none\n```\ntwo\n````\n\nhello"
    assert page.texts(".file summary") == ["notes.txt 12 characters"]
    assert page.texts("#files li") == []
