"""Client text never becomes control ids, wherever it stands and whatever a template does with it."""

from __future__ import annotations

import json
import pathlib
import shutil
import unicodedata
from collections.abc import Callable, Mapping

import hypothesis
import hypothesis.strategies as st
import pytest
from maple_protocols.ask import CalledTool, Conversation, Message, RawIds, RawText, Role
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from maple.prompt.control_text import SEAL, ControlText, unseal
from maple.prompt.encode import PromptEncoder

LIMIT = 100_000
MAPLE_CONTROL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<think>", "</think>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
    "<|repo_name|>", "<|file_sep|>", "<|vision_start|>", "<|object_ref_end|>",
)  # fmt: skip
pieces = st.sampled_from(
    (*MAPLE_CONTROL, "<", ">", "<|", "|>", "</", "think", "/think", "im_end", "tool_call", "|im_end|",
     "<|im_", "end|>", "\n", "\n\n", " ", "x", "é", "e\u0301", "\u0338", "🍁", '"', "\\", "{", "}")
)  # fmt: skip
hostile_text = st.one_of(
    st.lists(pieces, max_size=6).map("".join),
    st.text(st.characters(codec="utf-8"), max_size=12),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), hostile_text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(hostile_text, inner, max_size=3)),
    max_leaves=6,
)
json_objects = st.dictionaries(hostile_text, json_values, max_size=3)
calls = st.builds(
    CalledTool, name=hostile_text, arguments=st.one_of(json_objects, json_objects.map(json.dumps))
)
messages = st.one_of(
    st.builds(Message, role=st.sampled_from(("system", "user", "tool")), content=hostile_text),
    st.builds(
        Message,
        role=st.just("assistant"),
        content=hostile_text,
        reasoning=st.one_of(st.none(), hostile_text),
        tool_calls=st.lists(calls, max_size=2).map(tuple),
    ),
)
tools = st.builds(
    lambda name, text, schema: {
        "type": "function",
        "function": {"name": name, "description": text, "parameters": schema},
    },
    hostile_text,
    hostile_text,
    json_objects,
)
conversations = st.builds(
    Conversation,
    messages=st.lists(messages, min_size=1, max_size=5).map(tuple),
    tools=st.lists(tools, max_size=2).map(tuple),
)


def harmless(conversation: Conversation) -> Conversation:
    """The same conversation with ``x`` for every text that is not empty."""
    return Conversation(
        messages=tuple(
            Message(
                role=message.role,
                content=message.content and "x",
                reasoning=message.reasoning and "x",
                tool_calls=tuple(CalledTool(name="x", arguments="{}") for _ in message.tool_calls),
            )
            for message in conversation.messages
        ),
        tools=tuple({"type": "function", "function": {"name": "x"}} for _ in conversation.tools),
    )


def control_ids(folder: pathlib.Path) -> Mapping[int, str]:
    added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    return {token["id"]: token["content"] for token in added}


@pytest.fixture(scope="module", params=["maple", "golden"])
def folder(
    request: pytest.FixtureRequest, maple_tokenizer_folder: pathlib.Path, golden_folder: pathlib.Path
) -> pathlib.Path:
    return maple_tokenizer_folder if request.param == "maple" else golden_folder / "mlx-2bit"


@pytest.fixture(scope="module")
def prepared(folder: pathlib.Path) -> tuple[PromptEncoder, Tokenizer, Mapping[int, str]]:
    """An encoder, a plain tokenizer to decode with, and the control ids of both."""
    return PromptEncoder(folder), Tokenizer.from_file(str(folder / "tokenizer.json")), control_ids(folder)


@hypothesis.settings(max_examples=400, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@hypothesis.given(conversation=conversations, thinking=st.booleans())
def test_control_ids_do_not_depend_on_client_text(
    prepared: tuple[PromptEncoder, Tokenizer, Mapping[int, str]], conversation: Conversation, thinking: bool
) -> None:
    """Hostile texts leave a conversation the control ids, in order, that harmless ones give it."""
    encoder, _, control = prepared
    hostile = encoder.encode(conversation, thinking=thinking, limit=LIMIT).ids
    plain = encoder.encode(harmless(conversation), thinking=thinking, limit=LIMIT).ids
    assert [i for i in hostile if i in control] == [i for i in plain if i in control]


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(content=hostile_text)
def test_client_text_reaches_the_model_unchanged(
    prepared: tuple[PromptEncoder, Tokenizer, Mapping[int, str]], content: str
) -> None:
    """The ids of a hostile text decode to that text."""
    encoder, tokenizer, _ = prepared
    conversation = Conversation(messages=(Message(role="user", content=content),))
    ids = encoder.encode(conversation, thinking=True, limit=LIMIT).ids
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    expected = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert unicodedata.normalize("NFC", decoded) == unicodedata.normalize("NFC", expected)


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("control", MAPLE_CONTROL)
def test_every_control_string_in_every_role_is_text(
    maple_encoder: PromptEncoder, role: Role, control: str
) -> None:
    """One control string as a whole message is spelt with ordinary tokens."""
    conversation = Conversation(messages=(Message(role=role, content=control),))
    ids = maple_encoder.encode(conversation, thinking=True, limit=LIMIT).ids
    plain = maple_encoder.encode(harmless(conversation), thinking=True, limit=LIMIT).ids
    assert sorted(i for i in ids if i >= 151643) == sorted(i for i in plain if i >= 151643)


def test_rendered_text_holds_no_client_marker(maple_encoder: PromptEncoder) -> None:
    """The text that parsers look at has only the template's own markers, and can be encoded."""
    conversation = Conversation(messages=(Message(role="user", content="</think> and <think>"),))
    text = maple_encoder.encode(conversation, thinking=False, limit=LIMIT).text
    assert (text.count("<think>"), text.count("</think>")) == (1, 1)
    assert text.encode().decode() == text


def test_raw_text_has_control_tokens(maple_encoder: PromptEncoder) -> None:
    """In a raw prompt control strings are control tokens, and nothing is added."""
    encoded = maple_encoder.encode(RawText("<|im_start|>user\nhi"), thinking=True, limit=LIMIT)
    assert encoded.ids[0] == 151644
    assert encoded.text == encoded.subject == "<|im_start|>user\nhi"


def test_raw_ids_pass_through(maple_encoder: PromptEncoder) -> None:
    """Ids are taken as they are; their text is known to parsers and recordings."""
    encoded = maple_encoder.encode(RawIds((151644, 872, 198, 6023)), thinking=True, limit=LIMIT)
    assert encoded.ids == (151644, 872, 198, 6023)
    assert encoded.subject == "<|im_start|>user\nhi"


Encoders = Callable[[str], PromptEncoder]


@pytest.fixture
def with_template(tmp_path: pathlib.Path, golden_folder: pathlib.Path) -> Encoders:
    """Makes an encoder of the golden tokenizer with a template of the test's own."""

    def build(template: str) -> PromptEncoder:
        shutil.copyfile(golden_folder / "mlx-2bit" / "tokenizer.json", tmp_path / "tokenizer.json")
        (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
        return PromptEncoder(tmp_path)

    return build


def user(content: str) -> Message:
    return Message(role="user", content=content)


HOSTILE_TEMPLATES = {
    "brackets around a client's word": (
        "<{{ messages[0].content }}>",
        ["think", "/think", " think", "tool_call"],
    ),
    "bars around a client's word": ("<|{{ messages[0].content }}|>", ["im_end", "|im_end|"]),
    "the end of a control string": ("{{ messages[0].content }}|>", ["<|im_end", "x<|im_start"]),
    "the beginning of a control string": ("<|im_{{ messages[0].content }}", ["end|>", "end|>x"]),
    "the last character": ("{{ messages[0].content }}>", ["<think", "a <|im_end|", "<tool_call"]),
    "the first character": ("<{{ messages[0].content }}", ["think>", "|im_end|>", "/think> b"]),
    "two texts side by side": (
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        ["<|im_\x00end|>", "<\x00think>", "<think\x00>"],
    ),
    "lower case": ("{{ messages[0].content | lower }}", ["<THINK>", "</Think>"]),
    "dropped characters": (
        "{{ messages[0].content | replace('\\r', '') }}",
        ["<thi\rnk>", "<\r|im_end|>", "</think\r>"],
    ),
    "stripped": ("<{{ messages[0].content | trim }}>", ["\nthink\n"]),
    "a slice": ("{{ messages[0].content[1:] }}", ["<<think>", "x</think>"]),
    "split and joined": ("{{ messages[0].content.split(',') | join }}", ["<th,ink>", "<,|im_end|>"]),
    "JSON": ("{{ messages[0] | tojson }}", ["<think>"]),
    "JSON in ASCII": ("{{ messages[0] | tojson(ensure_ascii=True) }}", ["<think>"]),
    "Python's own text": ("{{ messages[0] }}", ["<think>"]),
    "keys as tags": (
        "{% for key in tools[0].function.parameters %}<{{ key }}>{% endfor %}{{ messages[0].content }}",
        ["think", "/think", "tool_response", "<think>"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_TEMPLATES)
def test_templates_cannot_complete_control_strings(with_template: Encoders, name: str) -> None:
    """No id is a control id where the template itself writes no whole control string."""
    template, texts = HOSTILE_TEMPLATES[name]
    encoder = with_template(template)
    for text in texts:
        conversation = Conversation(
            messages=tuple(user(part) for part in text.split("\x00")),
            tools=({"type": "function", "function": {"name": "f", "parameters": {text: {}}}},),
        )
        encoded = encoder.encode(conversation, thinking=True, limit=LIMIT)
        assert min(encoded.ids) > 8, text
        assert SEAL not in encoded.text


def test_seals_do_not_show(with_template: Encoders) -> None:
    """What a template makes of client text is what it would make of it without the seals."""
    encoder = with_template("{{ messages[0] | tojson }} {{ messages[0] }} {{ [messages[0].content] }}")
    encoded = encoder.encode(Conversation(messages=(user("a<b>\u2028é"),)), thinking=True, limit=LIMIT)
    data = {"role": "user", "content": "a<b>\u2028é"}
    expected = f"{json.dumps(data, ensure_ascii=False)} {data} {[data['content']]}"
    assert encoder.encode(RawText(expected), thinking=True, limit=LIMIT).ids == encoded.ids


def test_known_words_are_not_sealed(with_template: Encoders) -> None:
    """A word that the template itself looks for is found, though a control string is built around it."""
    encoder = with_template("{% if messages[0].content == 'think' %}yes{% else %}no{% endif %}")
    assert encoder.encode(Conversation(messages=(user("think"),)), thinking=True, limit=LIMIT).text == "yes"


def test_template_variables_are_client_text(with_template: Encoders) -> None:
    """A variable that the client sets cannot hold control strings either."""
    encoder = with_template("{{ mood }}{{ messages[0].content }}")
    conversation = Conversation(messages=(user("hi"),), template_variables={"mood": "<think>"})
    assert min(encoder.encode(conversation, thinking=True, limit=LIMIT).ids) > 8


def test_a_vocabulary_that_could_spell_a_control_token(tmp_path: pathlib.Path) -> None:
    """Where merges lead to a control token, client text is spelt out character by character instead."""
    vocabulary = {"[UNK]": 0, "<": 1, "s": 2, ">": 3, "<s": 4, "<s>": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("<", "s"), ("<s", ">")], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("<s>{{ messages[0].content }}", encoding="utf-8")
    encoder = PromptEncoder(tmp_path)
    encoded = encoder.encode(Conversation(messages=(user("<s>s"),)), thinking=True, limit=LIMIT)
    assert encoded.ids == (5, 1, 2, 3, 2)


def test_flags_of_added_tokens_are_kept() -> None:
    """Lstrip and rstrip take white space along, single_word keeps to whole words, the longest token wins."""
    control = ControlText({
        7: AddedToken("[sep]", lstrip=True, rstrip=True),
        8: AddedToken("word", single_word=True),
        9: AddedToken("[sep]]"),
        10: AddedToken("\n\n"),
    })  # fmt: skip
    segments = [
        (segment.text, segment.token) for segment in control.segments("a [sep] \nb words word [sep]]\n\n")
    ]
    assert segments == [
        ("a", None),
        ("[sep]", 7),
        ("b words ", None),
        ("word", 8),
        (" ", None),
        ("[sep]]", 9),
        ("\n\n", 10),
    ]
    assert control.ids == {7, 8, 9}


def test_a_tokenizer_without_added_tokens() -> None:
    """With no control strings there is nothing to seal."""
    control = ControlText({})
    assert control.seal("<think>") == "<think>"
    assert [segment.text for segment in control.segments("<think>")] == ["<think>"]


@hypothesis.given(text=hostile_text)
def test_sealing_is_undone(text: str) -> None:
    """Taking the seals out gives the text that was sealed, and white space around it is untouched."""
    control = ControlText({i: AddedToken(content) for i, content in enumerate(MAPLE_CONTROL)})
    sealed = control.seal(text)
    assert unseal(sealed) == text
    assert len(sealed) - len(sealed.rstrip()) == len(text) - len(text.rstrip())
    assert len(sealed) - len(sealed.lstrip()) == len(text) - len(text.lstrip())
