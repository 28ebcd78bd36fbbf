"""What an empty page suggests, and the tools that the page itself answers."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from maple_testing.guard import HANG_GUARD

if TYPE_CHECKING:
    from tests.ui.conftest import Page

TOOLS = pathlib.Path(__file__).parents[2] / "maple" / "ui" / "page_tools.js"
CALL = "import {{ answerHere }} from {module}; console.log(answerHere({{ function: {call} }}))"


def test_the_ideas_are_the_served_models(demo_page: Page) -> None:
    """With a line that says what it is, and how to get the real one; each is answered well."""
    demo_page.until(lambda: "small demonstration" in demo_page.text(".empty .notice"))
    assert "python -m maple" in demo_page.text(".empty .notice")
    for index, answer in enumerate(("391", "Oslo", r"\d\d:\d\d")):
        demo_page.all(".empty li button")[index].click()
        demo_page.settled()
        assert re.search(answer, demo_page.text(".assistant .body"))
        if index < 2:
            demo_page.click("#new")
    assert demo_page.text(".call h3") == "Calls get_time"
    assert json.loads(demo_page.text(".tool .body"))["city"] == "Tokyo"
    demo_page.picture("page-tool")


def test_another_model_has_ideas_of_the_pages(page: Page) -> None:
    """A larger one can do more; nothing is said of a demonstration."""
    assert len(page.all(".empty li button")) == 3
    assert page.text(".empty .notice") == ""


def test_the_tools_go_out_when_they_are_wanted(page: Page) -> None:
    """Beside those of the settings."""
    page.set(**{"page-tools": "on", "tools": '[{"type": "function", "function": {"name": "get_weather"}}]'})
    page.ask("hello")
    [sent] = page.requests()
    names = [tool["function"]["name"] for tool in sent["body"]["tools"]]
    assert names == ["get_time", "calculate", "get_weather"]


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("calculate", {"expression": "17 × 23 − 2^3^2 / (4 % 3)"}, {"result": -121}),
        ("calculate", {"expression": "-2^2 + .5e1"}, {"result": 1}),
        ("calculate", {"expression": "8 - 3 - 2"}, {"result": 3}),
        ("calculate", {"expression": "2 * (3"}, {"error": "a bracket is not closed"}),
        ("calculate", {"expression": "2 3"}, {"error": "3 is not understood"}),
        ("calculate", {"expression": "alert(1)"}, {"error": "a is not understood"}),
        ("calculate", {"expression": "1 / 0"}, {"error": "there is no such number"}),
        ("calculate", {"expression": "(" * 2000}, {"error": "the expression is too long"}),
        ("calculate", {}, {"error": "the expression ends too soon"}),
        ("get_time", {"zone": "nowhere at all"}, {"error": "Invalid time zone specified: nowhere at all"}),
    ],
)
def test_what_the_tools_answer(name: str, arguments: dict[str, str], result: dict[str, object]) -> None:
    """Sums by the usual rules; what is no sum, or no place, is an error in words. Nothing is run as code."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    call = json.dumps({"name": name, "arguments": json.dumps(arguments)})
    script = CALL.format(module=json.dumps(TOOLS.as_uri()), call=call)
    done = subprocess.run(
        [node, "--input-type=module", "-e", script], capture_output=True, text=True, timeout=HANG_GUARD
    )
    assert json.loads(done.stdout) == result, done.stderr
