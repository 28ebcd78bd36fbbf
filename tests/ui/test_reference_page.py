"""The API reference at /docs, in a real browser: it draws /openapi.json, and nothing it does is blocked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from maple_testing.guard import HANG_GUARD
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.ui.conftest import Server


@pytest.fixture
def reference(driver: Chrome, server: Server) -> Iterator[Chrome]:
    """The page, drawn. The console must stay empty: no error, no policy violation."""
    driver.get_log("browser")
    driver.get(server.page.replace("/ui", "/docs"))
    WebDriverWait(driver, HANG_GUARD).until(
        lambda found: found.find_elements(By.CSS_SELECTOR, "main section")
    )
    yield driver
    complaints = [entry["message"] for entry in driver.get_log("browser") if entry["level"] != "INFO"]
    assert complaints == []


def texts(driver: Chrome, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)"
    found: list[str] = driver.execute_script(script, selector)
    return found


def test_every_operation_is_shown(reference: Chrome) -> None:
    """As many as the description has, each reachable from the list of contents."""
    script = "return fetch('openapi.json').then((answer) => answer.json())"
    described: Any = reference.execute_script(script)
    expected = [
        f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods
    ]
    assert sorted(texts(reference, "main section h3")) == sorted(expected)
    assert sorted(texts(reference, "nav a")) == sorted(expected)
    assert "Maple Server" in texts(reference, "h1")[0]


def test_fields_with_their_rules_are_shown(reference: Chrome) -> None:
    """Down into messages and tools, once they are opened."""
    chat = "#post_v1_chat_completions"
    reference.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
    shown = " ".join(texts(reference, f"{chat} .field"))
    for words in (
        "temperature",
        "at least 0, at most 2",
        "tool_calls",
        "reasoning_content",
        "text/event-stream",
    ):
        assert words in shown
    assert "model_loading" in shown


def test_a_link_to_an_operation_leads_there(reference: Chrome, server: Server) -> None:
    """Also when the page is opened by it."""
    reference.get(server.page.replace("/ui", "/docs#get_healthz"))
    reference.refresh()
    near = (
        "const box = document.getElementById('get_healthz')?.getBoundingClientRect();"
        "return Boolean(box) && box.top >= 0 && box.top < innerHeight"
    )
    WebDriverWait(reference, HANG_GUARD).until(lambda found: found.execute_script(near))


def test_the_reference_is_accessible(reference: Chrome, axe: str) -> None:
    """axe-core finds no violation, with everything opened."""
    reference.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
    reference.execute_script(axe)
    script = (
        "const done = arguments[0]; axe.run().then((found) => done(found.violations.map((each) => each.id)))"
    )
    assert reference.execute_async_script(script) == []
