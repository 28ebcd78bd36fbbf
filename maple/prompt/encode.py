"""Chat template and tokenizer: a prompt becomes ids, off the loop's thread and without transformers."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import attrs
import structlog
from maple_protocols.ask import CalledTool, Conversation, Message, Prompt, RawIds, RawText
from tokenizers import Tokenizer

from maple.engine.api import ConversationEnd
from maple.engine.detokenize import TokenBytes
from maple.engine.errors import PromptTooLong
from maple.prompt.control_text import SEAL, STAND_IN, ControlText, Segment, unseal
from maple.prompt.files import read_config, read_tokenizer, special_tokens, template_source
from maple.prompt.json_spacing import SPACINGS, JsonSpacing
from maple.prompt.template import ChatTemplate, TemplateFailed, TemplateRefused
from maple.prompt.token_bound import SHRINKAGE, TokenBound

T = TypeVar("T")

log = structlog.get_logger(__name__)


_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_THINK = "<think>"
_CLOSED = "\n\n</think>\n\n"
_UTF8_WIDEST = 4
_OPEN_END = "\udffe"
"""Marks where a message goes on: like the seal, a code point that no request can hold."""
_PROBE = '{"a": "b", "c": ["d", "e"]}'
_CALLING = Conversation(
    messages=(
        Message(role="user", content="a"),
        Message(
            role="assistant", content="", tool_calls=(CalledTool(name="f", arguments=json.loads(_PROBE)),)
        ),
        Message(role="tool", content="b"),
    )
)


@attrs.frozen(kw_only=True)
class EncodedPrompt:
    """A prompt ready for the engine.

    ``text`` is the rendered prompt, in which client text holds no control strings; ``subject`` is the last
    user message (or the raw prompt), ``end`` what the conversation ends with.
    """

    ids: tuple[int, ...]
    text: str
    subject: str
    end: ConversationEnd


class PromptEncoder:
    """The tokenizer and template of one checkpoint folder. Thread safe once built."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Read tokenizer.json, tokenizer_config.json and the template.

        Raises TokenizerInvalid or TemplateInvalid.
        """
        config = read_config(folder)
        self._tokenizer = read_tokenizer(folder)
        self.template_source = template_source(folder, config)
        self._template = ChatTemplate(self.template_source)
        self._special_tokens = dict(special_tokens(config))
        self._control = ControlText(self._tokenizer.get_added_tokens_decoder(), self._template.words)
        self._text = _without_added_tokens(self._tokenizer)
        self._vocabulary = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._bound = TokenBound(self._tokenizer)

    @property
    def vocabulary(self) -> int:
        """How many ids have a token: ids 0..vocabulary−1."""
        return self._vocabulary

    @property
    def template_variables(self) -> frozenset[str]:
        """The names that the template itself reads, beyond messages, tools and add_generation_prompt."""
        return self._template.variables - _GIVEN - self._special_tokens.keys()

    def special_token(self, name: str) -> str:
        """A special token by its name in tokenizer_config.json, "" where there is none."""
        return self._special_tokens.get(name, "")

    def spelling(self, token_id: int) -> tuple[str, bytes]:
        """The token of an id as the vocabulary has it, and the bytes that it stands for; both empty without one."""
        return self._tokenizer.id_to_token(token_id) or "", self._bytes[token_id]

    def control_ids(self, text: str) -> tuple[int, ...]:
        """The ids of our own text, in which tags are control tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, prompt: Prompt, *, thinking: bool, limit: int) -> EncodedPrompt:
        """Render and tokenise.

        Raises PromptTooLong before tokenising text that cannot fit ``limit`` ids, and TemplateFailed or
        TemplateRefused.
        """
        if isinstance(prompt, RawIds):
            text = self._tokenizer.decode(prompt.ids, skip_special_tokens=False)
            return _raw(prompt.ids, text)
        if isinstance(prompt, RawText):
            self._refuse_hopeless(prompt.text, limit)
            return _raw(self._tokenizer.encode(prompt.text, add_special_tokens=False).ids, prompt.text)
        sealed = self._render(prompt, thinking, limit)
        self._refuse_hopeless(unseal(sealed), limit)
        return EncodedPrompt(
            ids=tuple(self._ids(self._control.segments(sealed))),
            text=sealed.replace(SEAL, STAND_IN),
            subject=_last_user_text(prompt),
            end=_end(prompt),
        )

    def render(self, conversation: Conversation, *, thinking: bool, limit: int) -> str:
        """The prompt's text, for people and for raw prompts: control strings of the client's are spelt apart.

        Raises PromptTooLong, TemplateFailed or TemplateRefused.
        """
        return self._control.shown(self._render(conversation, thinking, limit))

    def _render(self, conversation: Conversation, thinking: bool, limit: int) -> str:
        """The sealed prompt. The reasoning block is closed here where the template cannot be told to."""
        parts: list[str] = []
        room = limit * self._bound.longest * SHRINKAGE
        variables = self._variables(conversation, thinking)
        with contextlib.closing(self._template.render(variables, self._control)) as rendering:
            for part in rendering:
                parts.append(part)
                room -= len(part) - part.count(SEAL)
                if room < 0:
                    raise PromptTooLong(limit=limit, got=limit + 1)
        rendered = "".join(parts)
        if conversation.ending == "open":
            return _cut_open(rendered)
        if not thinking and "enable_thinking" not in self._template.variables:
            return _close_thinking(rendered)
        return rendered

    @functools.cached_property
    def _spacing(self) -> JsonSpacing | None:
        """How the template itself spells a call's arguments; None where it cannot be told."""
        try:
            rendered = "".join(self._template.render(self._variables(_CALLING, False), self._control))
        except (TemplateFailed, TemplateRefused):
            return None
        return next((one for one in SPACINGS if one.respell(_PROBE) in rendered), None)

    @functools.cached_property
    def _bytes(self) -> TokenBytes:
        return TokenBytes(self._tokenizer)

    def _message(self, message: Message) -> dict[str, object]:
        """One message as templates read it; absent fields are missing, not None."""
        seal = self._control.seal
        rendered: dict[str, object] = {"role": message.role, "content": seal(message.content)}
        if message.reasoning is not None:
            rendered["reasoning_content"] = seal(message.reasoning)
        if message.tool_calls:
            rendered["tool_calls"] = [self._call(call) for call in message.tool_calls]
        return rendered

    def _call(self, call: CalledTool) -> dict[str, object]:
        arguments = call.arguments
        if isinstance(arguments, str) and self._spacing is not None:
            arguments = self._spacing.respell(arguments)
        function = {
            "name": self._control.seal(call.name),
            "arguments": self._control.seal_value(arguments),
        }
        return {"type": "function", "function": function}

    def _variables(self, conversation: Conversation, thinking: bool) -> dict[str, object]:
        seal = self._control.seal_value
        wanted = {name: seal(value) for name, value in conversation.template_variables.items()}
        messages = [self._message(message) for message in conversation.messages]
        if conversation.ending == "open":
            _mark_open(messages[-1])
        return {
            **self._special_tokens,
            **wanted,
            "enable_thinking": thinking,
            "messages": messages,
            "tools": seal(conversation.tools) if conversation.tools else None,
            "documents": None,
            "add_generation_prompt": conversation.ending == "answer",
        }

    def _refuse_hopeless(self, text: str, limit: int) -> None:
        """Raise PromptTooLong where not even the longest tokens could spell ``text`` in ``limit`` ids."""
        if len(text) * _UTF8_WIDEST > limit and (least := self._bound.least(text)) > limit:
            raise PromptTooLong(limit=limit, got=least)

    def _ids(self, segments: Iterable[Segment]) -> Iterator[int]:
        for segment in segments:
            if segment.token is not None:
                yield segment.token
            else:
                yield from self._text_ids(segment.text)

    def _text_ids(self, text: str) -> list[int]:
        """Ids of ``text`` as text, even where the vocabulary could spell a control token from its letters."""
        ids = self._spell(text)
        if self._control.ids.isdisjoint(ids):
            return ids
        return [number for character in text for number in self._spell(character)]

    def _spell(self, text: str) -> list[int]:
        ids: list[int] = self._text.encode(text, add_special_tokens=False).ids
        return ids


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same vocabulary and stages, to which a control string is text like any other."""
    plain = Tokenizer(tokenizer.model)
    plain.normalizer, plain.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    return plain


def _last_user_text(conversation: Conversation) -> str:
    users = (message.content for message in reversed(conversation.messages) if message.role == "user")
    return next(users, "")


def _end(conversation: Conversation) -> ConversationEnd:
    last = conversation.messages[-1]
    results = sum(message.role == "tool" for message in conversation.messages)
    return ConversationEnd(text=last.content, from_tool=last.role == "tool", tool_results=results)


def _raw(ids: Sequence[int], text: str) -> EncodedPrompt:
    return EncodedPrompt(ids=tuple(ids), text=text, subject=text, end=ConversationEnd(text=text))


def _mark_open(message: dict[str, object]) -> None:
    """Mark the end of what is to go on: the content, or the reasoning where there is no content."""
    part = "content" if message["content"] or "reasoning_content" not in message else "reasoning_content"
    message[part] = f"{message[part]}{_OPEN_END}"


def _cut_open(rendered: str) -> str:
    """The prompt up to where its last message goes on. Raises TemplateRefused where that is not shown."""
    shown, mark, _ = rendered.rpartition(_OPEN_END)
    if not mark:
        raise TemplateRefused("it does not show the message that is to go on")
    return shown


def _close_thinking(rendered: str) -> str:
    opened = rendered.rstrip("\n")
    return opened + _CLOSED if opened.endswith(_THINK) else rendered
