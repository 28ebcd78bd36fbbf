"""The API reference at /docs, in a real browser: it draws /openapi.json, and nothing it does is blocked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from maple_testing.guard import HANG_GUARD
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.ui.conftest import ARTEFACTS

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


def test_it_begins_with_chat(reference: Chrome) -> None:
    """What most people come for; the rest of what generates follows."""
    assert (
        texts(reference, "nav a")[0] == texts(reference, "main section h3")[0] == "POST /v1/chat/completions"
    )
    assert texts(reference, "nav h2")[0] == "Generation"


def test_every_operation_has_a_sample(reference: Chrome) -> None:
    """A command with this server's address, and the body that it is tried with."""
    commands = texts(reference, "main section details pre code")
    assert len(commands) == len(texts(reference, "main section h3"))
    assert all(command.startswith("curl ") and "http://127.0.0.1:" in command for command in commands)
    assert '-d \'{\n  "messages"' in commands[0]


def tried(driver: Chrome, operation: str) -> str:
    """What an operation answers, once its sample has been sent."""
    section = driver.find_element(By.ID, operation)
    section.find_element(By.CSS_SELECTOR, "details summary").click()
    for field in section.find_elements(By.CSS_SELECTOR, ".trial input"):
        field.send_keys("maple-preview")
    section.find_element(By.CSS_SELECTOR, ".trial button").click()
    answer = section.find_element(By.CSS_SELECTOR, ".answer")
    WebDriverWait(driver, HANG_GUARD).until(lambda _: "\n\n" in answer.text and len(answer.text) > 12)
    return answer.text


def test_a_route_is_tried_from_the_page(reference: Chrome) -> None:
    """With a body, without one, and with a part of the path; each answer as a person reads it."""
    chat = tried(reference, "post_v1_chat_completions")
    assert chat.startswith("200 OK\n\n{")
    assert '"content": "391 is the answer."' in chat
    assert '"id": "maple-preview"' in tried(reference, "get_v1_models_id")
    assert "maple_requests_total" in tried(reference, "get_metrics")
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    for width, name in ((1200, "window"), (390, "phone")):
        reference.execute_script("scrollTo(0, 0)")
        metrics = {"width": width, "height": 860, "deviceScaleFactor": 1, "mobile": width < 500}
        reference.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        assert reference.save_screenshot(str(ARTEFACTS / f"reference-{name}.png"))
        assert reference.execute_script("return document.scrollingElement.scrollWidth") <= width
    reference.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


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
