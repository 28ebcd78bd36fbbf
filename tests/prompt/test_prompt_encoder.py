"""The encoder's own duties: limits, variables, files, and the pool."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shutil
import threading
from collections.abc import Callable

import hypothesis
import hypothesis.strategies as st
import pytest
from maple_protocols.ask import CalledTool, Conversation, Message, RawText
from tokenizers import Tokenizer, models

from maple.engine.errors import PromptTooLong
from maple.prompt.encode import PromptEncoder
from maple.prompt.files import TokenizerInvalid
from maple.prompt.pool import PromptPool
from maple.prompt.template import TemplateInvalid
from maple.prompt.token_bound import TokenBound


def ask(content: str, **more: object) -> Conversation:
    return Conversation(messages=(Message(role="user", content=content),), **more)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: pathlib.Path, golden_folder: pathlib.Path) -> pathlib.Path:
    """A checkpoint folder that a test may spoil."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(golden_folder / "mlx-2bit" / name, tmp_path / name)
    return tmp_path


def test_vocabulary(maple_encoder: PromptEncoder, golden_encoder: PromptEncoder) -> None:
    """The ids that have a token, added ones included."""
    assert (maple_encoder.vocabulary, golden_encoder.vocabulary) == (151669, 512)


def test_maple_template_has_no_further_variables(maple_encoder: PromptEncoder) -> None:
    """Nothing but messages, tools and add_generation_prompt can be given to Maple's own template."""
    assert maple_encoder.template_variables == frozenset()


def test_template_variables(folder: pathlib.Path) -> None:
    """What the server itself provides is no variable for clients; the rest is."""
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{{ eos_token }}{{ tools }}{{ mood }}{{ enable_thinking }}"
    )
    (folder / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}'
    )
    encoder = PromptEncoder(folder)
    assert encoder.template_variables == {"mood", "enable_thinking"}
    encoded = encoder.encode(ask("hi", template_variables={"mood": "calm"}), thinking=False, limit=100)
    assert encoded.text == "<|im_start|><|im_end|>NonecalmFalse"
    assert encoded.ids[:2] == (1, 2)


@pytest.mark.parametrize(("thinking", "text"), [(True, "on<think>\n"), (False, "off<think>\n")])
def test_a_template_that_reads_enable_thinking_is_trusted(
    folder: pathlib.Path, thinking: bool, text: str
) -> None:
    """The block is not closed behind the back of a template that knows about thinking."""
    source = "{% if enable_thinking %}on{% else %}off{% endif %}{{ '<think>\\n' }}"
    (folder / "chat_template.jinja").write_text(source)
    assert PromptEncoder(folder).encode(ask("hi"), thinking=thinking, limit=100).text == text


def test_a_prompt_that_does_not_end_in_reasoning_is_left_alone(folder: pathlib.Path) -> None:
    """A template without a think block needs none closed."""
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}<|im_end|>")
    assert PromptEncoder(folder).encode(ask("<think>"), thinking=False, limit=100).text.endswith("<|im_end|>")


@pytest.mark.parametrize(
    ("messages", "subject"),
    [
        ([("user", "a"), ("assistant", "b"), ("user", "<think>c"), ("tool", "d")], "<think>c"),
        ([("system", "a")], ""),
    ],
)
def test_subject_is_the_last_user_message(
    golden_encoder: PromptEncoder, messages: list[tuple[str, str]], subject: str
) -> None:
    """Recordings are matched by what the user said last."""
    made = tuple(Message(role=role, content=content) for role, content in messages)  # type: ignore[arg-type]
    assert golden_encoder.encode(Conversation(messages=made), thinking=True, limit=1000).subject == subject


@pytest.mark.parametrize("build", [ask, RawText])
@pytest.mark.parametrize(
    "text", ["hello world " * 50_000, "9" * 2000, "日" * 50_000, "e\u0301" * 50_000, "<" * 20_001]
)
def test_text_that_cannot_fit_is_refused_before_tokenising(
    maple_encoder: PromptEncoder, build: Callable[[str], Conversation | RawText], text: str
) -> None:
    """The error holds the limit and a count that the prompt has at least."""
    with pytest.raises(PromptTooLong) as caught:
        maple_encoder.encode(build(text), thinking=True, limit=1000)
    assert caught.value.limit == 1000
    real = len(maple_encoder.encode(build(text), thinking=True, limit=10**9).ids)
    assert 1000 < caught.value.got <= real


def test_text_that_may_fit_is_tokenised(maple_encoder: PromptEncoder) -> None:
    """128 spaces can be one id, so that many are never refused by their size alone."""
    ids = maple_encoder.encode(RawText(" " * 128_000), thinking=True, limit=1000).ids
    assert len(ids) == 1000


def test_a_template_that_prints_without_end_is_too_long(folder: pathlib.Path) -> None:
    """Rendering stops where the output cannot fit any more."""
    (folder / "chat_template.jinja").write_text(
        "{% for a in range(9999) %}{{ messages[0].content }}{% endfor %}"
    )
    with pytest.raises(PromptTooLong) as caught:
        PromptEncoder(folder).encode(ask("x" * 100), thinking=True, limit=10)
    assert caught.value.got == 11


texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from("aé日 \n9<").map(
    lambda c: c * 300
)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(text=texts)
def test_the_bound_is_a_bound(
    maple_tokenizer: Tokenizer, golden_tokenizer: Tokenizer, bounds: tuple[TokenBound, TokenBound], text: str
) -> None:
    """No text becomes fewer ids than the bound says."""
    for tokenizer, bound in zip((maple_tokenizer, golden_tokenizer), bounds, strict=True):
        assert bound.least(text) <= len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def maple_tokenizer(maple_tokenizer_folder: pathlib.Path) -> Tokenizer:
    return Tokenizer.from_file(str(maple_tokenizer_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def golden_tokenizer(golden_folder: pathlib.Path) -> Tokenizer:
    return Tokenizer.from_file(str(golden_folder / "mlx-2bit" / "tokenizer.json"))


@pytest.fixture(scope="module")
def bounds(maple_tokenizer: Tokenizer, golden_tokenizer: Tokenizer) -> tuple[TokenBound, TokenBound]:
    return TokenBound(maple_tokenizer), TokenBound(golden_tokenizer)


def test_the_bound_of_a_vocabulary_that_is_not_byte_level() -> None:
    """Tokens are counted in UTF-8 there; unknown characters cost as little as any."""
    bound = TokenBound(Tokenizer(models.WordLevel({"日本": 0, "ab": 1, "?": 2}, unk_token="?")))
    assert bound.longest == 6
    assert (bound.least("abab"), bound.least("日本日本"), bound.least("zzzzzz"), bound.least("")) == (
        2,
        2,
        1,
        0,
    )


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b'"x"', b""])
def test_broken_tokenizer_files_are_named(folder: pathlib.Path, name: str, content: bytes) -> None:
    """One line names the file, never the folder."""
    (folder / name).write_bytes(content)
    with pytest.raises(TokenizerInvalid) as caught:
        PromptEncoder(folder)
    assert str(caught.value).startswith(f"{name}: ")
    assert str(folder) not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_tokenizer_is_named(tmp_path: pathlib.Path) -> None:
    """A folder without tokenizer.json is refused."""
    with pytest.raises(TokenizerInvalid, match=r"tokenizer\.json: is missing"):
        PromptEncoder(tmp_path)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content }}",
        [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "{{ messages[0].content }}"},
        ],
    ],
)
def test_older_checkpoints_keep_the_template_in_the_config(folder: pathlib.Path, template: object) -> None:
    """Without chat_template.jinja the config's template is taken, the default one of several."""
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert PromptEncoder(folder).encode(ask("hi"), thinking=True, limit=100).text == "hi"


@pytest.mark.parametrize(
    "config",
    [{}, {"chat_template": []}, {"chat_template": [{"name": "x"}, 3]}, {"chat_template": 3}],
)
def test_a_checkpoint_without_a_template_is_refused(folder: pathlib.Path, config: object) -> None:
    """One clear error says so."""
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TemplateInvalid, match="the checkpoint has none"):
        PromptEncoder(folder)


def test_a_template_that_is_not_text_is_refused(folder: pathlib.Path) -> None:
    """Bytes that are not UTF-8 are one clear error."""
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(TemplateInvalid, match="UTF-8"):
        PromptEncoder(folder)


def test_padding_and_truncation_of_the_file_are_off(folder: pathlib.Path) -> None:
    """A tokenizer saved with truncation or padding neither cuts nor fills prompts."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = PromptEncoder(folder).encode(RawText("one two three four"), thinking=True, limit=100).ids
    assert 3 < len(ids) < 50


def test_the_pool_encodes_off_the_loop(golden_encoder: PromptEncoder) -> None:
    """Prompts are encoded by two named threads, and errors come through."""
    pool = PromptPool(golden_encoder)

    async def use() -> None:
        subjects = [pool.encode(ask(str(number)), thinking=True, limit=1000) for number in range(20)]
        assert [encoded.subject for encoded in await asyncio.gather(*subjects)] == [str(n) for n in range(20)]
        with pytest.raises(PromptTooLong):
            await pool.encode(ask("x" * 9999), thinking=True, limit=1)
        names = {thread.name for thread in threading.enumerate() if thread.name.startswith("maple-prompt")}
        assert names == {"maple-prompt_0", "maple-prompt_1"}

    try:
        asyncio.run(use())
    finally:
        pool.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("maple-prompt")]


@pytest.mark.parametrize(
    ("printed", "rendered"),
    [
        ("arguments | tojson", '{"a": [1.0, "é"]}'),
        ("arguments | tojson(separators=(',', ':'))", '{"a":[1.0,"é"]}'),
        ("raise_exception('no calls')", '{ "a":[1.0, "\\u00e9"]}'),
    ],
)
def test_text_arguments_are_spelt_as_the_template_spells_objects(
    folder: pathlib.Path, printed: str, rendered: str
) -> None:
    """What a client spelt anew is the model's own text again; where the template does not say, it stays as sent."""
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set arguments = c.function.arguments %}"
        "{% if arguments is string %}{{ arguments }}{% else %}{{ " + printed + " }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    call = CalledTool(name="f", arguments='{ "a":[1.0, "\\u00e9"]}')
    conversation = Conversation(messages=(Message(role="assistant", content="", tool_calls=(call,)),))
    assert PromptEncoder(folder).encode(conversation, thinking=True, limit=1000).text == rendered
