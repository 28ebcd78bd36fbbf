"""POST /tokenize, /detokenize and /apply-template, in the shapes of vLLM and of llama-server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Protocol

import attrs

from maple_protocols.adapter import JsonObject, Policy
from maple_protocols.answers import as_json
from maple_protocols.ask import Ask, RawIds, RawText
from maple_protocols.errors import InvalidField
from maple_protocols.openai import fields
from maple_protocols.openai.chat_in import chat_ask
from maple_protocols.reading import reading
from maple_protocols.rules import Doc, Inert, Misfit
from maple_protocols.strict import ignored, structure


@attrs.frozen(kw_only=True)
class TokenFacts:
    """A prompt as the server reads it. ``spelling`` gives an id's token and its bytes; the window is in tokens."""

    ids: Sequence[int]
    text: str
    spelling: Callable[[int], tuple[str, bytes]]
    max_model_len: int


AS_ON_CHAT = Doc("As on /v1/chat/completions, whose other fields may come along.")


@attrs.frozen(kw_only=True)
class TokenizeRequest:
    """The body of POST /tokenize: a prompt, or content, or messages."""

    model: fields.Model = None
    messages: Annotated[object, AS_ON_CHAT] = None
    prompt: Annotated[str | None, Doc("Goes to the model untouched.")] = None
    content: Annotated[str | None, Doc("Another name of prompt.")] = None
    return_token_strs: Annotated[bool, Doc("Add the tokens as the vocabulary spells them.")] = False
    with_pieces: Annotated[
        bool, Doc("Add the same, and make tokens objects of id and piece, as llama-server does.")
    ] = False
    add_special_tokens: Annotated[object, Inert(), Doc("The tokenizer adds none.")] = None
    add_special: Annotated[object, Inert(False), Doc("The tokenizer adds none.")] = None
    parse_special: Annotated[object, Inert(True), Doc("Control strings of a prompt are control tokens.")] = (
        None
    )


@attrs.frozen(kw_only=True)
class PieceOfText:
    """A token: ``piece`` is its text, or its bytes where they are no text by themselves."""

    id: int
    piece: str | tuple[int, ...]


@attrs.frozen(kw_only=True)
class Tokenized:
    """A prompt's tokens."""

    tokens: Annotated[tuple[int, ...] | tuple[PieceOfText, ...], Doc("Ids, or objects if asked for.")]
    count: int
    max_model_len: Annotated[int, Doc("The window in tokens.")]
    token_strs: Annotated[tuple[str, ...] | None, Doc("If asked for.")] = None


@attrs.frozen(kw_only=True)
class DetokenizeRequest:
    """The body of POST /detokenize."""

    model: fields.Model = None
    tokens: Annotated[tuple[int, ...], Doc("Ids of the vocabulary.")]


@attrs.frozen(kw_only=True)
class Detokenized:
    """The text of some tokens, under the names that vLLM and llama-server have for it."""

    prompt: str
    content: str


@attrs.frozen(kw_only=True)
class TemplateRequest:
    """The body of POST /apply-template."""

    messages: Annotated[object, AS_ON_CHAT]


@attrs.frozen(kw_only=True)
class TemplateApplied:
    """A conversation as the chat template renders it."""

    prompt: str


class TokenAdapter(Protocol):
    """What the three have in common. With ``renders``, the facts are a conversation's text, without its ids."""

    path: ClassVar[str]
    prompt_param: ClassVar[str]
    renders: ClassVar[bool]
    request: ClassVar[type]
    answers: ClassVar[Mapping[str, type]]

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly. Raises InvalidField."""
        ...

    def answer(self, ask: Ask, facts: TokenFacts) -> JsonObject:
        """The answer on the wire."""
        ...


class TokenizeAdapter:
    """The tokens of a prompt or of a conversation, without an answer to it."""

    path: ClassVar[str] = "/tokenize"
    prompt_param: ClassVar[str] = "prompt"
    renders: ClassVar[bool] = False
    request: ClassVar[type] = TokenizeRequest
    answers: ClassVar[Mapping[str, type]] = {"whole": Tokenized}

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Exactly one of messages, prompt and content must be there. Raises InvalidField."""
        given = [name for name in ("messages", "prompt", "content") if body.get(name) is not None]
        if len(given) != 1:
            raise InvalidField(param="prompt", message="one of prompt, messages and content must be given")
        talks, refuse = given == ["messages"], policy.refuses_unknown(closed=False)
        with reading(extended=policy.extended):
            own = structure(TokenizeRequest, body, refuse_unknown=refuse and not talks)
        wishes: JsonObject = {"strs": own.return_token_strs or own.with_pieces, "pieces": own.with_pieces}
        if talks:
            return attrs.evolve(chat_ask(_chat_part(body), policy, refuse_unknown=refuse), echo=wishes)
        text = own.prompt if own.prompt is not None else own.content or ""
        return Ask(prompt=RawText(text), model=own.model, echo=wishes, ignored=ignored(TokenizeRequest, body))

    def answer(self, ask: Ask, facts: TokenFacts) -> JsonObject:
        """The ids, and what was asked for beside them."""
        spelt = [facts.spelling(one) for one in facts.ids] if ask.echo["strs"] else []
        pieces = tuple(
            PieceOfText(id=one, piece=_piece(raw)) for one, (_, raw) in zip(facts.ids, spelt, strict=False)
        )
        answer = Tokenized(
            tokens=pieces if ask.echo["pieces"] else tuple(facts.ids),
            count=len(facts.ids),
            max_model_len=facts.max_model_len,
            token_strs=tuple(name for name, _ in spelt) if ask.echo["strs"] else None,
        )
        return as_json(answer)


class DetokenizeAdapter:
    """The text of tokens, control tokens included."""

    path: ClassVar[str] = "/detokenize"
    prompt_param: ClassVar[str] = "tokens"
    renders: ClassVar[bool] = False
    request: ClassVar[type] = DetokenizeRequest
    answers: ClassVar[Mapping[str, type]] = {"whole": Detokenized}

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Every id must have a token. Raises InvalidField."""

        def check(ids: tuple[int, ...], _: Mapping[str, object]) -> None:
            if ids and not (min(ids) >= 0 and max(ids) < policy.vocabulary):
                raise Misfit(f"must hold token ids from 0 to {policy.vocabulary - 1}")

        refuse = policy.refuses_unknown(closed=False)
        request = structure(DetokenizeRequest, body, refuse_unknown=refuse, checks={"tokens": check})
        return Ask(
            prompt=RawIds(request.tokens), model=request.model, ignored=ignored(DetokenizeRequest, body)
        )

    def answer(self, _: Ask, facts: TokenFacts) -> JsonObject:
        """The text under both names."""
        return as_json(Detokenized(prompt=facts.text, content=facts.text))


class TemplateAdapter:
    """The text that the chat template makes of a conversation."""

    path: ClassVar[str] = "/apply-template"
    prompt_param: ClassVar[str] = "messages"
    renders: ClassVar[bool] = True
    request: ClassVar[type] = TemplateRequest
    answers: ClassVar[Mapping[str, type]] = {"whole": TemplateApplied}

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """As on chat. Raises InvalidField."""
        return chat_ask(body, policy, refuse_unknown=policy.refuses_unknown(closed=False))

    def answer(self, _: Ask, facts: TokenFacts) -> JsonObject:
        """The text; a control string that a client wrote is spelt apart in it."""
        return as_json(TemplateApplied(prompt=facts.text))


def _chat_part(body: Mapping[str, object]) -> JsonObject:
    own = {field.name for field in attrs.fields(TokenizeRequest)} - {"model", "messages"}
    return {key: value for key, value in body.items() if key not in own}


def _piece(raw: bytes) -> str | tuple[int, ...]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return tuple(raw)
