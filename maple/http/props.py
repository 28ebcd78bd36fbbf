"""GET /props and /version, as tools for llama-server and vLLM read them, and what this server does not do."""

from __future__ import annotations

from typing import Annotated

import attrs
from maple_protocols.adapter import Policy
from maple_protocols.answers import as_json
from maple_protocols.rules import Doc

from maple.engine.errors import ModelLoading
from maple.http.api_operation import ENGINE, Operation, Operations, json_of
from maple.http.application import Route
from maple.http.asking import check_engine
from maple.http.base import JsonHandler
from maple.http.invitation import Invitation
from maple.http.refused import NotSupported
from maple.http.wire import encode_json


@attrs.frozen(kw_only=True)
class DefaultParams:
    """What a request that says nothing is sampled with."""

    temperature: float
    top_p: float
    top_k: Annotated[int, Doc("0 is off.")]
    n_predict: Annotated[int, Doc("Tokens, reasoning and answer together.")]


@attrs.frozen(kw_only=True)
class DefaultSettings:
    """The window in tokens, and the defaults of a request."""

    n_ctx: int
    params: DefaultParams


@attrs.frozen(kw_only=True)
class Modalities:
    """What the model takes beside text."""

    vision: bool
    audio: bool


@attrs.frozen(kw_only=True)
class Props:
    """What is served, and how."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    modalities: Modalities
    bos_token: str
    eos_token: str
    build_info: str
    invitation: Annotated[Invitation | None, Doc("What the chat page suggests; null where it knows itself.")]


@attrs.frozen(kw_only=True)
class Version:
    """The server's version."""

    version: str


class PropsHandler(JsonHandler):
    """What is served, in llama-server's words."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET."""
        summary = "What is served, in llama-server's words."
        return {
            "get": Operation(summary=summary, tag="Models", answers={200: json_of(Props)}, refusals=ENGINE)
        }

    def check(self, *groups: str) -> None:
        """Nothing of it is known before the model is there."""
        check_engine(self.services.turns)

    async def respond(self, *groups: str) -> None:
        """All of it is fixed once the model is loaded."""
        self.write(encode_json(as_json(self._props())))

    def _props(self) -> Props:
        turns = self.services.turns
        if turns.engine.served is None or turns.prompts is None:
            raise ModelLoading
        encoder, sampling = turns.prompts.encoder, turns.default_sampling(turns.engine.served)
        params = DefaultParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            n_predict=turns.default_max_tokens,
        )
        return Props(
            default_generation_settings=DefaultSettings(
                n_ctx=turns.engine.served.max_model_len, params=params
            ),
            total_slots=turns.engine.slots,
            model_alias=self.services.settings.model_id,
            model_path=self.services.model_path,
            chat_template=encoder.template_source,
            modalities=Modalities(vision=False, audio=False),
            bos_token=encoder.special_token("bos_token"),
            eos_token=encoder.special_token("eos_token"),
            build_info=f"maple {self.services.version}",
            invitation=self.services.invitation,
        )


class VersionHandler(JsonHandler):
    """The server's version, as vLLM tells its own."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET."""
        summary = "The server's version."
        return {"get": Operation(summary=summary, tag="Operations", answers={200: json_of(Version)})}

    async def respond(self, *groups: str) -> None:
        """Always the same."""
        self.write(encode_json(as_json(Version(version=self.services.version))))


class EmbeddingsHandler(JsonHandler):
    """What clients ask for and no model of this server can give."""

    methods = ("POST",)

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """POST, which is always refused."""
        summary = "Not served: the model generates text, and makes no embeddings."
        return {"post": Operation(summary=summary, tag="Generation", answers={}, refusals=(NotSupported,))}

    def check(self, *groups: str) -> None:
        """Raises NotSupported."""
        raise NotSupported("this server makes no embeddings: its model generates text")
