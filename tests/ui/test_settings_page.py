"""What the page's settings do to its requests, and where a key is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from tests.ui.conftest import Page


def test_without_settings_the_server_decides(page: Page) -> None:
    """Nothing but the message, the stream and the thinking switch goes out."""
    page.ask("hello")
    [sent] = page.requests()
    assert sent["body"] == {
        "messages": [{"role": "user", "content": "hello"}],
        "chat_template_kwargs": {"enable_thinking": True},
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
    }
    assert "Authorization" not in sent["headers"]


def test_system_prompt_and_sampling_arrive(page: Page) -> None:
    """In the request, and in what comes back: the limit cuts the answer. They outlive a reload."""
    page.set(system="Be brief.", temperature="0.35", top_p="0.9", top_k="0", seed="-7", max_tokens="7")
    page.open()
    answer = page.ask("hello")
    [sent] = page.requests()
    assert sent["body"]["messages"][0] == {"role": "system", "content": "Be brief."}
    options = {name: sent["body"][name] for name in ("temperature", "top_p", "top_k", "seed", "max_tokens")}
    assert options == {"temperature": 0.35, "top_p": 0.9, "top_k": 0, "seed": -7, "max_tokens": 7}
    assert answer == "391 is"
    assert "cut at the limit" in page.text(".assistant .rate")


def test_thinking_can_be_switched_off(page: Page) -> None:
    """The same words are an answer then, where they were thoughts before."""
    assert page.ask("no thoughts") == ""
    assert page.text(".reasoning .text") == "A plain answer."
    page.click("#composer .check")
    assert page.ask("no thoughts please") == "A plain answer."
    assert len(page.all(".reasoning")) == 1
    page.open()
    assert not page.one("#thinking").is_selected()


def test_tools_that_are_no_json_list_are_refused_beside_the_field(page: Page) -> None:
    """The dialog stays, says why, and the example is a good one."""
    page.click("#open-settings")
    for text, word in (
        ("{", "Not JSON"),
        ('{"a": 1}', "Give a JSON list"),
        ('[{"type": "function"}]', "tools[0].function"),
    ):
        page.one("#tools").clear()
        page.one("#tools").send_keys(text)
        page.click("#settings button[type=submit]")
        page.until(lambda word=word: word in page.text("#tools-error"))  # type: ignore[misc]  # bound now
        assert page.one("#settings").is_displayed()
    assert all("400" in complaint for complaint in page.complaints())
    page.click("#sample-tool")
    page.click("#settings button[type=submit]")
    page.until(lambda: not page.one("#settings").is_displayed())
    page.ask("hello")
    assert page.requests()[0]["body"]["tools"][0]["function"]["name"] == "get_weather"


def test_cancel_changes_nothing(page: Page) -> None:
    """What was typed into the settings is forgotten."""
    page.click("#open-settings")
    page.one("#system").send_keys("Never sent.")
    page.click("#cancel-settings")
    page.ask("hello")
    assert page.requests()[0]["body"]["messages"][0]["role"] == "user"


def test_a_key_is_asked_for_and_kept_for_the_tab_only(locked_page: Page) -> None:
    """The box for it opens by itself; it goes into the header, into the tab's own store, and nowhere else."""
    page = locked_page
    page.until(lambda: page.one("#settings").is_displayed())
    assert page.text("#key-note") == "The server asks for a key."
    assert page.driver.switch_to.active_element.get_attribute("id") == "key"
    page.driver.switch_to.active_element.send_keys("sesame", Keys.ENTER)
    page.until(lambda: page.text("#model") == "maple-preview")
    assert all("401" in text for text in page.complaints())
    assert page.ask("hello") == "391 is the answer."
    assert page.requests()[0]["headers"]["Authorization"] == "Bearer sesame"
    assert "sesame" not in page.js("return JSON.stringify(localStorage)")
    page.open()
    assert page.text("#status") == ""
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.open()
    page.until(lambda: page.one("#settings").is_displayed())
    assert page.js("return sessionStorage.length") == 0
    page.driver.close()
    page.driver.switch_to.window(first)
    assert all("401" in text for text in page.complaints())


def test_a_wrong_key_is_told(locked_page: Page) -> None:
    """In the server's words, beside the answer that never came; the question is kept, and the box opens again."""
    page = locked_page
    page.until(lambda: page.one("#settings").is_displayed())
    page.click("#cancel-settings")
    page.ask("hello", status="The answer failed.")
    page.until(lambda: page.one("#settings").is_displayed())
    page.one("#key").send_keys("wrong")
    page.click("#settings button[type=submit]")
    page.until(lambda: page.text("#key-note") == "The server refuses this key.")
    assert "key" in page.text(".assistant .error").lower()
    assert page.texts(".user .body") == ["hello"]
    assert all("401" in text for text in page.complaints())


def test_empty_fields_show_the_servers_defaults(page: Page) -> None:
    """What a request without them is sampled by."""
    page.click("#open-settings")
    shown = {
        name: page.one(f"#{name}").get_attribute("placeholder") for name in ("temperature", "top_p", "seed")
    }
    assert shown == {"temperature": "0.6", "top_p": "0.95", "seed": "random"}
    page.click("#cancel-settings")


def test_settings_are_each_conversations_own(page: Page) -> None:
    """Unless they are meant for new ones too."""
    page.ask("hello")
    page.set(system="Only here.")
    page.click("#new")
    page.ask("something else")
    page.click("#conversations .open", "hello")
    page.ask("and again")
    systems = [one["body"]["messages"][0]["content"] for one in page.requests()]
    assert systems == ["hello", "something else", "Only here."]
    page.set(**{"system": "Everywhere.", "for-new": "on"})
    page.click("#new")
    page.ask("a third")
    assert page.requests()[0]["body"]["messages"][0]["content"] == "Everywhere."


def test_what_is_served_is_told(page: Page) -> None:
    """Model, context and version, by the model's name; the API's reference is a link."""
    page.click("#model")
    assert page.one("#facts").is_displayed()
    assert {"maple-preview", "Context"} <= set(page.texts("#facts-list > *"))
    assert page.text("#version").startswith("maple ")
    assert str(page.one("#sidebar a").get_attribute("href")).endswith("/docs")


def test_the_system_decides_the_colours_until_one_is_chosen(page: Page) -> None:
    """A choice outlives a reload."""
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = page.js(ground)
    page.emulate("dark")
    dark = page.js(ground)
    assert light != dark
    page.set(theme="light")
    assert page.js(ground) == light
    page.open()
    assert page.js(ground) == light
