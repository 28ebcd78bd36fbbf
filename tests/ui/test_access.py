"""The page for everybody: assistive technology, keyboards, colour schemes, phones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from tests.ui.conftest import Page

PHONE = 390
RUN_AXE = """
const done = arguments[0];
axe.run().then((found) => done(found.violations), (error) => done(String(error)));
"""


def faults(page: Page, axe: str) -> list[str]:
    """What axe-core calls serious or critical on what is shown now."""
    page.driver.execute_script(axe)
    found = page.driver.execute_async_script(RUN_AXE)
    assert isinstance(found, list), found
    return [
        f"{fault['id']}: {fault['help']}: {node['html'][:200]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize("width", [0, PHONE], ids=["window", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(page: Page, axe: str, scheme: str, width: int) -> None:
    """On the first visit, in a conversation with everything in it, and in the settings."""
    page.emulate(scheme, width)
    name = f"{scheme}-{'phone' if width else 'window'}"
    page.picture(f"{name}-empty")
    assert faults(page, axe) == []
    page.ask("break", status="The answer failed.")
    page.ask("show me markdown")
    page.picture(f"{name}-markdown")
    page.ask("weather and time please", status="asks for a tool")
    page.click(".assistant:last-of-type summary")
    page.picture(f"{name}-tools")
    assert faults(page, axe) == []
    page.click("#open-settings")
    page.picture(f"{name}-settings")
    assert faults(page, axe) == []
    page.click("#cancel-settings")


def test_a_phone_shows_it_all_without_scrolling_sideways(page: Page) -> None:
    """Wide code and tables scroll in their own boxes; conversations are a drawer."""
    page.emulate("light", PHONE)
    page.ask("show me markdown with_a_very_long_word_" + "x" * 300)
    assert page.js("return document.scrollingElement.scrollWidth") <= PHONE
    assert not page.one("#sidebar").is_displayed()
    page.click("#menu")
    assert page.one("#menu").get_attribute("aria-expanded") == "true"
    page.picture("light-phone-drawer")
    assert page.js("return document.scrollingElement.scrollWidth") <= PHONE
    page.click("#conversations .open")
    assert not page.one("#sidebar").is_displayed()
    page.click("#open-settings")
    assert page.js("return document.scrollingElement.scrollWidth") <= PHONE
    page.click("#cancel-settings")


def test_enter_begins_a_line_under_a_thumb(page: Page) -> None:
    """A thumb's keyboard has no Shift+Enter: the button sends."""
    page.emulate("light", PHONE, touch=True)
    page.open()
    page.one("#prompt").send_keys("one", Keys.ENTER, "two")
    assert page.one("#prompt").get_attribute("value") == "one\ntwo"
    page.click("#send")
    page.until(lambda: page.texts(".user .body") == ["one\ntwo"])
    page.settled()


SMALL = """
const controls = "button, select, summary, input:not([type=checkbox]), .check, #sidebar a";
const shown = (node) => node.checkVisibility({ opacityProperty: true }) && !node.closest("[popover], .hidden, .skip");
return [...document.querySelectorAll(controls)].filter(shown)
  .map((node) => [node.textContent.trim() || node.ariaLabel, node.getBoundingClientRect()])
  .filter(([, { width, height }]) => Math.min(width, height) < 44)
  .map(([name, { width, height }]) => `${name}: ${width} × ${height}`);
"""
"""Controls that a thumb may miss."""


def test_a_thumb_hits_every_control(page: Page) -> None:
    """At least 44 pixels each way, in a conversation, in the list and in the settings."""
    page.emulate("light", PHONE, touch=True)
    page.open()
    page.one("#prompt").send_keys("weather and time please")
    page.click("#send")
    page.settled("asks for a tool")
    assert page.js(SMALL) == []
    page.click("#menu")
    assert page.js(SMALL) == []
    page.click("#menu")
    page.click("#open-settings")
    assert page.js(SMALL) == []
    page.click("#cancel-settings")


def test_the_way_to_the_end_goes_when_there_is_nothing_newer(page: Page) -> None:
    """Also when what was below has gone, without a touch."""
    page.emulate("light", PHONE, touch=True)
    page.open()
    page.one("#prompt").send_keys("long code")
    page.click("#send")
    page.settled()
    page.js("document.getElementById('log').scrollTop = 0")
    page.until(lambda: page.one("#newest").is_displayed())
    page.click("#newest")
    page.until(lambda: not page.one("#newest").is_displayed())
    page.js("document.getElementById('log').scrollTop = 0")
    page.until(lambda: page.one("#newest").is_displayed())
    page.click("#menu")
    page.click("#new")
    page.until(lambda: not page.one("#newest").is_displayed())


def press(page: Page, *keys: str) -> None:
    ActionChains(page.driver).send_keys(*keys).perform()


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the focus is there; everything on the way has to show that it has the focus."""
    here = "return document.activeElement.matches(arguments[0])"
    outlined = "return getComputedStyle(document.activeElement).outlineStyle"
    for _ in range(60):
        press(page, Keys.TAB)
        if page.js(here, selector):
            assert page.js(outlined) != "none" or selector == "#prompt"  # the composer's frame shows it
            return
    pytest.fail(f"Tab never reached {selector}")


def test_the_keyboard_is_enough(page: Page) -> None:
    """Skip link, sending, stopping, unfolding, making again, settings and their end: no pointer is needed."""
    press(page, Keys.TAB)
    assert page.driver.switch_to.active_element.get_attribute("class") == "skip"
    press(page, Keys.ENTER)
    assert page.driver.switch_to.active_element.get_attribute("id") == "prompt"
    press(page, "count slowly", Keys.ENTER)
    page.until(lambda: "2 3" in page.text(".assistant .body"))
    tab_to(page, "#stop")
    press(page, Keys.ENTER)
    page.settled("Stopped.")
    assert page.driver.switch_to.active_element.get_attribute("id") == "prompt"
    press(page, "hello", Keys.ENTER)
    page.until(lambda: len(page.all(".assistant")) == 2)
    page.settled()
    tab_to(page, ".assistant:last-of-type summary")
    press(page, Keys.ENTER)
    assert page.all(".reasoning .text")[-1].is_displayed()
    tab_to(page, ".assistant:last-of-type .foot button")
    tab_to(page, "#open-settings")
    press(page, Keys.ENTER)
    assert page.driver.switch_to.active_element.get_attribute("id") == "system"
    press(page, Keys.ESCAPE)
    assert not page.one("#settings").is_displayed()
    assert page.driver.switch_to.active_element.get_attribute("id") == "open-settings"


def test_who_begins_to_type_means_the_message(page: Page) -> None:
    """No click is needed first."""
    press(page, "hello there")
    assert page.one("#prompt").get_attribute("value") == "hello there"


def test_what_happens_is_announced(page: Page) -> None:
    """A live region says when an answer begins and ends; the stream itself is not read out word by word."""
    assert page.one("#status").get_attribute("role") == "status"
    assert page.js("return document.getElementById('status').getBoundingClientRect().width") <= 1
    assert page.one("#log").get_attribute("aria-live") == "off"
    page.send("count slowly")
    page.until(lambda: page.text("#status") == "Maple is answering…")
    page.one("#prompt").send_keys(Keys.ESCAPE)
    page.settled("Stopped.")


def test_a_reader_who_has_scrolled_up_is_left_alone(page: Page) -> None:
    """New text does not move the page under them; a button leads back to the end."""
    page.emulate("light", PHONE)
    page.ask("show me markdown")
    page.ask("show me markdown again")
    page.send("count slowly")
    page.until(lambda: "2 3" in page.text(".assistant .body"))
    page.js("document.getElementById('log').scrollTop = 0")
    seen = len(page.text(".assistant .body"))
    page.until(lambda: len(page.text(".assistant .body")) > seen + 10)
    assert page.js("return document.getElementById('log').scrollTop") == 0
    page.click("#newest")
    page.until(lambda: page.js("return document.getElementById('log').scrollTop") > 0)
    page.click("#stop")
    page.settled("Stopped.")
