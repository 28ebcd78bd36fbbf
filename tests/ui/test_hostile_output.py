"""Whatever the model writes stays text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from selenium.common.exceptions import NoAlertPresentException

if TYPE_CHECKING:
    from tests.ui.conftest import Page

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_markup_in_every_place_stays_text(page: Page) -> None:
    """Thoughts, answers, code, tables, tool names and arguments: as written, and no element comes of it.

    The page's own fixture sees to it that no policy was violated either: nothing even tried.
    """
    page.ask("attack", status="asks for a tool")
    assert page.text(".reasoning .text") == HOSTILE
    assert page.text(".assistant .body").count(HOSTILE) >= 8
    assert page.text(".call h3") == f"Calls {HOSTILE}"
    assert page.text(".call pre").count(HOSTILE) == 2
    assert page.all("#log img, #log script, #log iframe, #log svg, #log object, #log b") == []
    with pytest.raises(NoAlertPresentException):
        _ = page.driver.switch_to.alert
    page.picture("hostile")


def test_links_lead_to_web_and_mail_only(page: Page) -> None:
    """Other schemes stay text; no attribute but ours is on any element."""
    page.ask("attack", status="asks for a tool")
    targets = page.js(
        "return [...document.querySelectorAll('#log a')].map((link) => link.getAttribute('href'))"
    )
    assert targets
    assert all(target.startswith("https://example.org/") for target in targets)
    handlers = "return [...document.querySelectorAll('#log *')].flatMap((node) => node.getAttributeNames())"
    assert not [name for name in page.js(handlers) if name.startswith("on") or name == "style"]


def test_it_is_still_text_after_a_reload(page: Page) -> None:
    """The store is no way around it; a title is text too."""
    page.ask(f"attack {HOSTILE}", status="asks for a tool")
    page.open()
    assert page.text(".call h3") == f"Calls {HOSTILE}"
    assert page.text("#conversations .open").startswith("attack <img src=x")
    assert page.all("#log img, #sidebar img, .bar script") == []


def test_pathological_markup_neither_hangs_nor_breaks_the_page(page: Page) -> None:
    """Thousands of nested quotes and open brackets: shown, and the next turn works."""
    page.ask("nested")
    assert "[[[[" in page.text(".assistant .body")
    assert page.ask("hello") == "391 is the answer."
