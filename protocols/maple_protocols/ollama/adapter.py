"""Ollama's routes: what generates, what tells about the model, and what this server does not do."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping
from typing import ClassVar

import attrs

from maple_protocols.adapter import Encoder, Fold, Identity, JsonObject, Policy, ServedModel
from maple_protocols.ask import Ask
from maple_protocols.dialect import Call, Failure, Framing, Reply
from maple_protocols.errors import ErrorBody, InvalidField, ModelNotFound, RequestError
from maple_protocols.ollama.answer import Lines, OllamaEncoder, OllamaFold
from maple_protocols.ollama.request import LATEST, ChatBody, GenerateBody, chat_ask, generate_ask
from maple_protocols.openai.models import names_model

VERSION = "0.13.5"
"""The version of Ollama whose api this is: clients ask for a least one."""
FOREVER = "2318-01-01T00:00:00Z"
NOT_SERVED = ("pull", "push", "create", "copy", "delete", "embed", "embeddings")


@attrs.define(eq=False)
class NotServed(RequestError):
    """A route of Ollama's that changes models, or embeds."""

    path: str
    status = 501

    @property
    def body(self) -> ErrorBody:
        """Names the route."""
        words = f"{self.path} is not served: this server has one model, and it makes text"
        return ErrorBody(message=words, type="server_error", code="not_supported")


class _Ollama:
    """What every route of the protocol does alike."""

    any_content_type: ClassVar[bool] = True

    def refusal(self, failure: Failure) -> Reply:
        """Ollama's shape."""
        return Reply(status=failure.status, headers=failure.headers, body={"error": failure.error.message})


class OllamaChat(_Ollama):
    """Ollama's chat: lines of JSON by default."""

    path: ClassVar[str] = "/api/chat"
    prompt_param: ClassVar[str] = "messages"
    request: ClassVar[type] = ChatBody
    closed: ClassVar[bool] = False
    framing: ClassVar[Framing] = "ndjson"

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly, in the field order of ChatBody. Raises InvalidField."""
        return chat_ask(body, policy, refuse_unknown=policy.refuses_unknown(closed=self.closed))

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """Lines of one turn."""
        return OllamaEncoder(Lines(ask, identity, chat=True))

    def fold(self, ask: Ask, identity: Identity) -> Fold:
        """The whole answer of one turn."""
        return OllamaFold(Lines(ask, identity, chat=True))


class OllamaGenerate(_Ollama):
    """Ollama's answer to a single prompt: lines of JSON by default."""

    path: ClassVar[str] = "/api/generate"
    prompt_param: ClassVar[str] = "prompt"
    request: ClassVar[type] = GenerateBody
    closed: ClassVar[bool] = False
    framing: ClassVar[Framing] = "ndjson"

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly, in the field order of GenerateBody. Raises InvalidField."""
        return generate_ask(body, policy, refuse_unknown=policy.refuses_unknown(closed=self.closed))

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """Lines of one turn."""
        return OllamaEncoder(Lines(ask, identity, chat=False))

    def fold(self, ask: Ask, identity: Identity) -> Fold:
        """The whole answer of one turn."""
        return OllamaFold(Lines(ask, identity, chat=False))


class OllamaRoutes(_Ollama):
    """What Ollama's clients ask about the model and the server."""

    greeting: ClassVar[str] = "Ollama is running"
    routes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "/api/version": ("GET",),
        "/api/tags": ("GET",),
        "/api/ps": ("GET",),
        "/api/show": ("POST",),
        **{f"/api/{name}": ("DELETE",) if name == "delete" else ("POST",) for name in NOT_SERVED},
    }

    def reply(self, call: Call) -> Reply:
        """By the path. Raises RequestError."""
        served = call.served
        names = (served.id, *served.aliases)
        match call.pattern:
            case "/api/version":
                return Reply(body={"version": VERSION})
            case "/api/tags":
                return Reply(body={"models": [_card(served, name) for name in names]})
            case "/api/ps":
                running = served.max_model_len is not None
                more = {"expires_at": FOREVER, "size_vram": 0, "context_length": served.max_model_len}
                return Reply(body={"models": [{**_card(served, served.id), **more}] if running else []})
            case "/api/show":
                return Reply(body=_shown(served, names, call.body))
            case _:
                raise NotServed(call.pattern)


def _card(served: ServedModel, name: str) -> JsonObject:
    return {
        "name": f"{name}{LATEST}",
        "model": f"{name}{LATEST}",
        "modified_at": _time(served.created),
        "size": served.file_bytes,
        "digest": hashlib.sha256(f"{served.id} {served.file_bytes}".encode()).hexdigest(),
        "details": _details(served),
    }


def _shown(served: ServedModel, names: tuple[str, ...], body: Mapping[str, object]) -> JsonObject:
    wanted = body.get("model", body.get("name"))
    if not isinstance(wanted, str):
        raise InvalidField(param="model", message="model must be a string")
    if served.strict and not any(names_model(wanted.removesuffix(LATEST), name) for name in names):
        raise ModelNotFound(wanted)
    return {
        "details": _details(served),
        "model_info": {
            "general.architecture": "maple",
            "general.parameter_count": served.parameters,
            "maple.context_length": served.max_model_len,
        },
        "capabilities": ["completion", "tools", "thinking"],
        "template": "",
        "parameters": "",
        "modified_at": _time(served.created),
    }


def _details(served: ServedModel) -> JsonObject:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": "maple",
        "families": ["maple"],
        "parameter_size": _short(served.parameters),
        "quantization_level": served.quantization,
    }


def _short(count: int) -> str:
    """As Ollama writes a number of weights: 7.2M, 20.2B."""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)


def _time(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class OllamaProtocol:
    """All of Ollama's routes."""

    parts: ClassVar[tuple[object, ...]] = (OllamaChat(), OllamaGenerate(), OllamaRoutes())
