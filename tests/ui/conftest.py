"""The chat page in a real browser, in front of a real server process that plays recordings."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from maple_testing.guard import HANG_GUARD
from maple_testing.wire import environment_without
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.ui.rich_text import RICH

ARTEFACTS = pathlib.Path(__file__).parents[1] / "artefacts" / "ui"
AXE = "axe-core@4.11"
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1200,860",
)

FORGET = """
const done = arguments[0];
localStorage.clear(); sessionStorage.clear();
const gone = indexedDB.deleteDatabase("maple");
gone.onsuccess = gone.onerror = gone.onblocked = done;
"""
"""All that the browser keeps of the page."""

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
MARKDOWN = (
    "## Adding numbers\n\nSome **bold**, `code`, *emphasis*, a [link](https://example.org) and steps:\n\n",
    "1. Take `a`.\n2. Add `b`:\n   - carry, if there is one\n\n3. Done.\n\n",
    "```python\ndef add(a: int, b: int) -> int:\n    return a + b\n```\n\n",
    "| a | b | a + b |\n|---|---|---|\n| 1 | 2 | 3 |\n\n> Quoted for good measure.\n",
)
ATTACKS = (
    f"{HOSTILE}\n\n# {HOSTILE}\n\n- {HOSTILE}\n\n> {HOSTILE}\n\n**{HOSTILE}** `{HOSTILE}`\n\n",
    f"| {HOSTILE} |x|\n|---|---|\n| {HOSTILE} |y|\n\n```{HOSTILE}\n</code></pre>{HOSTILE}\n```\n\n",
    "[one](javascript:alert(3)) [two](data:text/html,<script>alert(4)</script>) <javascript:alert(5)> ",
    '[three](https://example.org/"onmouseover="alert(6)) ![four](https://example.org/x.png) &lt;b&gt;',
)
WIDE_TABLE = "|" + "number|" * 7 + "\n|" + "--:|" * 7 + "\n|" + "9876543210|" * 7


def call_text(name: str, **arguments: object) -> str:
    """A tool call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def line(match: str | None, *pieces: str, delay_ms: int = 0, finish: str = "stop") -> dict[str, object]:
    return {"match": match, "pieces": pieces, "delay_ms": delay_ms, "finish": finish}


RECORDINGS = (
    line("count slowly", "Counting.", "</think>\n\n", *(f"{number} " for number in range(600)), delay_ms=60),
    line("think slowly", *(f"thought {number}, " for number in range(600)), "</think>", "At last.", delay_ms=60),
    line("weather", "I need two tools.", "</think>", call_text("get_weather", city="Oslo"),
         call_text("get_time", zone="Europe/Oslo")),
    line("markdown", "Let me ", "lay this out.\nOn two lines.", "</think>\n\n", *MARKDOWN),
    line("attack", HOSTILE, "</think>\n\n", *ATTACKS, call_text(HOSTILE, **{HOSTILE: HOSTILE})),
    line("no thoughts", "A plain", " answer."),
    line("break", "Half", "</think>", "An answer that", finish="error"),
    line("nested", "</think>", ">" * 9000, "\n", "  - x\n" * 50, *(9000 * mark for mark in "[`*"), "_a " * 999),
    line("pause", "</think>", "At last.", delay_ms=4000),
    line("late", "</think>", "At last.", delay_ms=1200),
    line("two", "</think>", "Second answer."),
    line("rich", "</think>", RICH),
    line("long code", "</think>", "```text\n" + "".join(f"line {number}\n" for number in range(80)) + "```"),
    line("wide table", "</think>", WIDE_TABLE),
    line(None, "We", " add", " them.", "\n</think>", "\n\n", "391", " is", " the", " answer.", delay_ms=20),
)  # fmt: skip


@attrs.frozen
class Server:
    """A running server's address, its process, and its counts."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.port}/ui"

    def stats(self) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_GUARD)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/stats?format=json")
            counts: dict[str, Any] = json.loads(connection.getresponse().read())
            return counts


def _port(output: Iterator[str], ready: str) -> int:
    """The port that the log names before the server is ``ready``; the log is drained by nobody after that."""
    port = 0
    for text in output:
        port = int(found[1]) if (found := re.search(r'"port": ?(\d+)', text)) else port
        if ready in text:
            return port
    pytest.fail(f"the server ended before {ready}")


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """``serve(MAPLE_X="…")``: a server with the recordings; all are stopped when the tests are done.

    With flags it serves what they say instead. It is there when its log says ``ready``.
    """
    folder = tmp_path_factory.mktemp("ui")
    script = folder / "recordings.jsonl"
    script.write_text("".join(json.dumps(recording) + "\n" for recording in RECORDINGS), encoding="utf-8")
    inherited = environment_without("MAPLE_")
    fixed = {"MAPLE_LOG_FORMAT": "json", "MAPLE_CACHE_DIR": str(folder), "PYTHONSAFEPATH": "1"}
    with contextlib.ExitStack() as stack:

        def start(*flags: str, ready: str = "server.ready", **settings: str) -> Server:
            log = folder / f"server-{len(list(folder.iterdir()))}.log"
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "maple", *(flags or ("--scripted", str(script))), "--port", "0"],
                    stdout=stack.enter_context(log.open("w")),
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env={**inherited, **fixed, **settings},
                )
            )
            stack.callback(process.terminate)
            with log.open(encoding="utf-8") as output:
                return Server(_port(_grown(output, process), ready), process)

        yield start


def _grown(output: Any, process: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines of a file that another process writes, until that process ends."""
    while process.poll() is None:
        yield from output
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)


@pytest.fixture(scope="session")
def server(serve: Callable[..., Server]) -> Server:
    """One without a key, for several answers at once."""
    return serve(MAPLE_MAX_BATCH="4")


@pytest.fixture(scope="session")
def locked_server(serve: Callable[..., Server]) -> Server:
    """One that asks for a key."""
    return serve(MAPLE_API_KEY="sesame")


@pytest.fixture(scope="session")
def demo_server(serve: Callable[..., Server]) -> Server:
    """One that serves the embedded model."""
    return serve("--demo")


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's source, from the npm registry, kept between runs."""
    folder = pathlib.Path(__file__).parents[2] / ".pytest_cache" / "axe-core"
    source = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not source.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed, so axe-core cannot be fetched")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", str(folder), "--no-save", "--no-audit", "--no-fund", AXE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_GUARD, check=False)
        if done.returncode:
            pytest.skip(f"npm could not install {AXE}: {done.stderr.strip()[-300:]}")
    return source.read_text(encoding="utf-8")


def _which(*names: str) -> str:
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"{names[0]} is not installed")
    return found


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Headless Chromium, without any network of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = _which("chromium", "chromium-browser", "google-chrome")
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    for flag in (*FLAGS, *root, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(_which("chromedriver"))
    with webdriver.Chrome(options=options, service=service) as browser:
        yield browser


class Page:
    """The chat page as a person uses it."""

    def __init__(self, driver: webdriver.Chrome, server: Server) -> None:
        self.driver = driver
        self.server = server
        self.open()

    def open(self) -> None:
        self.driver.get(self.server.page)
        self.until(lambda: self.js("return document.documentElement.dataset.ready"), "the page never began")
        self.until(lambda: self.text("#model") or self.text("#status"), "the page never met its server")

    def until(self, condition: Callable[[], Any], message: str = "") -> Any:
        """The condition's value, as soon as it is true."""
        return WebDriverWait(self.driver, HANG_GUARD, poll_frequency=0.05).until(
            lambda _: condition(), message
        )

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def js(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """The text of the last match, shown or not; "" where there is none."""
        script = "return [...document.querySelectorAll(arguments[0])].at(-1)?.textContent ?? ''"
        return str(self.js(script, selector))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)"
        return list(self.js(script, selector))

    def click(self, selector: str, name: str = "") -> None:
        """The last shown match, with that label where one is given."""
        shown = self.until(
            lambda: [node for node in self.all(selector) if node.is_displayed() and name in node.text],
            f"no {selector} {name!r}",
        )
        shown[-1].click()

    def send(self, text: str) -> None:
        self.one("#prompt").send_keys(text, Keys.ENTER)

    def settled(self, status: str = "The answer is complete.") -> None:
        """Wait until nothing streams and the page says so."""
        idle = "return document.getElementById('log').getAttribute('aria-busy') !== 'true'"
        self.until(lambda: self.js(idle) and status in self.text("#status"), f"never said {status!r}")

    def ask(self, text: str, status: str = "The answer is complete.") -> str:
        """Send, wait for the end, and return the answer."""
        self.send(text)
        self.until(lambda: self.texts(".user .body")[-1:] == [text])
        self.settled(status)
        return self.text(".assistant .body")

    def set(self, **fields: str) -> None:
        """Fill in the settings and close them."""
        self.click("#open-settings")
        for name, value in fields.items():
            field = self.one(f"#{name}")
            if field.get_attribute("type") == "checkbox":
                if field.is_selected() != (value == "on"):
                    field.click()
            elif field.tag_name == "select":
                field.find_element(By.CSS_SELECTOR, f"option[value={value}]").click()
            else:
                field.clear()
                field.send_keys(value)
        self.click("#settings button[type=submit]")
        self.until(lambda: not self.one("#settings").is_displayed())

    def requests(self) -> list[dict[str, Any]]:
        """The chat requests that went out since this was last asked: {headers, body}."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [
            event["params"]["request"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return [
            {"headers": request["headers"], "body": json.loads(request["postData"])}
            for request in sent
            if request["url"].endswith("/v1/chat/completions")
        ]

    def emulate(self, scheme: str = "light", width: int = 0, *, touch: bool = False) -> None:
        """A colour scheme that the system asks for, a phone's width (0: the window's), and a finger for a pointer."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        if width:
            metrics = {"width": width, "height": 844, "deviceScaleFactor": 2, "mobile": True}
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        else:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": touch})

    def picture(self, name: str) -> None:
        """Keep what is shown, for people to look at."""
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        assert self.driver.save_screenshot(str(ARTEFACTS / f"{name}.png"))

    def complaints(self) -> list[str]:
        """What the browser's console has had to say since this was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]


@contextlib.contextmanager
def _fresh(driver: webdriver.Chrome, server: Server) -> Iterator[Page]:
    """A page without a past, whose console stays empty."""
    driver.get(f"{server.page}/icon.svg")  # of the same origin, and without a hold on the database
    driver.execute_async_script(FORGET)
    page = Page(driver, server)
    page.emulate()
    page.complaints()
    page.requests()
    yield page
    assert page.complaints() == []


@pytest.fixture
def open_page(driver: webdriver.Chrome) -> Callable[[Server], contextlib.AbstractContextManager[Page]]:
    """``open_page(server)``, for a server of the test's own."""
    return functools.partial(_fresh, driver)


@pytest.fixture
def page(driver: webdriver.Chrome, server: Server) -> Iterator[Page]:
    """The chat page, as on a first visit. The console must stay empty: no error, no policy violation."""
    with _fresh(driver, server) as page:
        yield page


@pytest.fixture
def demo_page(driver: webdriver.Chrome, demo_server: Server) -> Iterator[Page]:
    """The same, in front of the embedded model."""
    with _fresh(driver, demo_server) as page:
        yield page


@pytest.fixture
def locked_page(driver: webdriver.Chrome, locked_server: Server) -> Iterator[Page]:
    """The same, of a server that asks for a key. The test takes the complaints about refusals."""
    with _fresh(driver, locked_server) as page:
        yield page
