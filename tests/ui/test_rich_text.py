"""Markdown, mathematics and code as people expect them, and nothing else on the page because of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.ui.conftest import Page

PHONE = 390


def each(page: Page, selector: str, expression: str) -> Any:
    """A value of every match."""
    return page.js(f"return [...document.querySelectorAll(arguments[0])].map((it) => {expression})", selector)


def test_markdown_is_complete(page: Page) -> None:
    """Task lists, aligned tables, strike, notes, escapes, entities, and the three marks of HTML that are usual."""
    page.ask("rich")
    assert (page.texts(".body sub"), page.texts(".body p > sup")[0], page.texts(".body s")) == (
        ["2"], "10", ["gone"],
    )  # fmt: skip
    first = page.texts(".assistant .body p")[0]
    assert "©" in first
    assert "*no emphasis*" in first
    assert each(page, ".task input", "[it.checked, it.disabled]") == [[True, True], [False, True]]
    assert each(page, ".body th", "getComputedStyle(it).textAlign") == ["start", "center", "right"]
    assert page.texts(".body td")[3] == "a | b"
    assert page.texts(".notes li strong") == ["weight"]
    assert page.js("return document.querySelector(document.querySelector('.body sup a').hash) !== null")
    assert page.js("return document.querySelectorAll('.body p br').length") == 1


def test_mathematics_is_set(page: Page) -> None:
    """Within a line and apart, as MathML; money stays money, and what is no formula or leads elsewhere stays text."""
    page.ask("rich")
    assert len(page.all(".body .formula math")) == 4
    assert len(page.all(".body .formula.display math")) == 2
    assert page.js("return document.querySelector('.display mfrac').getBoundingClientRect().height") > 20
    assert "prices are $5 and $10 still" in page.text(".assistant .body")
    assert page.texts(".body code.formula") == [r"\frac{1", r"\href{javascript:alert(1)}{a}"]
    assert page.all(".body [href^=javascript]") == []


def test_code_has_colours_and_can_be_wrapped(page: Page) -> None:
    """The controls stay in sight while a long block is scrolled."""
    page.ask("rich")
    assert page.texts(".block .hljs-keyword")[:2] == ["def", "return"]
    colours = each(page, ".block .hljs-keyword, .block .hljs-comment", "getComputedStyle(it).color")
    assert len(set(colours)) == 2
    wide = "const pre = document.querySelector('.block pre'); return pre.scrollWidth > pre.clientWidth"
    assert page.js(wide)
    page.click(".block button", "Wrap")
    assert not page.js(wide)
    page.ask("long code")
    page.js(
        "arguments[0].scrollIntoView(); arguments[1].scrollTop += 400",
        page.all(".block")[1],
        page.one("#log"),
    )
    log, *heads = each(page, "#log, .block-head", "Math.round(it.getBoundingClientRect().top)")
    assert heads[1] == log


def test_pictures_are_links_and_each_line_runs_its_own_way(page: Page) -> None:
    """Nothing is fetched from another site; Hebrew begins on the right."""
    page.ask("rich")
    assert page.text(".body a[href$='leaf.png']") == "Picture: a maple leaf"
    assert page.all("#log img") == []
    assert each(page, ".assistant .body > p", "getComputedStyle(it).direction")[-1] == "rtl"
    page.ask("שלום")
    assert each(page, ".user .body", "getComputedStyle(it).direction") == ["ltr", "rtl"]


def test_a_wide_table_is_scrolled_on_a_phone(page: Page) -> None:
    """No number is broken to make it fit."""
    page.emulate("light", PHONE)
    page.ask("wide table")
    heights = each(page, ".body td", "it.clientHeight / parseFloat(getComputedStyle(it).lineHeight)")
    assert max(heights) < 2
    assert page.js("const box = document.querySelector('.wide'); return box.scrollWidth > box.clientWidth")
    assert page.js("return document.scrollingElement.scrollWidth") <= PHONE


@pytest.mark.parametrize("width", [0, PHONE], ids=["window", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_kept_as_a_picture(page: Page, scheme: str, width: int) -> None:
    """For people to look at."""
    page.emulate(scheme, width)
    page.ask("rich")
    page.js("document.querySelector('.assistant').scrollIntoView()")
    page.picture(f"{scheme}-{'phone' if width else 'window'}-rich")
