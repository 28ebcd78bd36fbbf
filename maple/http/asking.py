"""From a body to an Ask: what all routes have in common that read a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs
import structlog
from maple_protocols.adapter import Policy
from maple_protocols.ask import Ask
from maple_protocols.errors import ModelNotFound
from maple_protocols.openai.models import names_model

from maple.engine.errors import ModelFailed, ModelLoading, ShuttingDown
from maple.http.base import JsonHandler
from maple.http.body import prompt_object
from maple.http.origin import IGNORED
from maple.http.wire import ignored_header
from maple.turns import Turns

log = structlog.get_logger(__name__)

KEY_HEADERS = frozenset({"Authorization", "Proxy-Authorization", "X-Api-Key", "Cookie"})
"""What no protocol gets to see."""


class Reads(Protocol):
    """The part of an adapter that reads requests (see ``GenerationAdapter``)."""

    @property
    def prompt_param(self) -> str:
        """The field that a too long prompt is blamed on."""
        ...

    def structure(self, body: Mapping[str, object], policy: Policy) -> Ask:
        """Validate strictly. Raises RequestError."""
        ...


def check_engine(turns: Turns) -> None:
    """Whether anything can be generated at all. Raises ShuttingDown, ModelLoading or ModelFailed."""
    if turns.engine.draining:
        raise ShuttingDown
    if turns.status == "loading":
        raise ModelLoading(turns.engine.loading.seconds_left)
    if turns.status == "error":
        raise ModelFailed(turns.error or "unknown")


class AskHandler(JsonHandler):
    """POST of a body that an adapter turns into an Ask."""

    methods = ("POST",)
    reads: Reads

    def check(self, *groups: str) -> None:
        """Nothing is read for an engine that cannot take it."""
        check_engine(self.services.turns)

    def body_object(self, data: bytes) -> dict[str, object]:
        """The body's object, which is not larger than a prompt may be. Any thread."""
        wire = prompt_object(data, self.services.turns.prompt_limit)
        self.maple.budget.note_structured(wire)
        return wire

    def structured(self, body: Mapping[str, object]) -> Ask:
        """The request that a body spells. Raises RequestError, or ModelLoading. Any thread."""
        ask = self.reads.structure(body, self.policy())
        settings = self.services.settings
        if (
            settings.strict_model
            and ask.model is not None
            and not any(
                names_model(ask.model, known) for known in (settings.model_id, *settings.model_aliases)
            )
        ):
            raise ModelNotFound(ask.model)
        return ask

    async def ask(self) -> Ask:
        """The request that was sent; what had no effect in it has been told."""
        ask = await self.from_body(lambda data: self.structured(self.body_object(data)))
        self.tell_ignored(ask.ignored)
        return ask

    def tell_ignored(self, paths: tuple[str, ...]) -> None:
        """What had no effect is said to the client and in the log; names are harmless by now."""
        if paths:
            self.set_header(IGNORED, ignored_header(paths))
            log.info("http.ignored", request_id=self.request_id, route=self.route, fields=sorted(set(paths)))

    def policy(self) -> Policy:
        """What the deployment decides, and what this request came with. Raises ModelLoading."""
        prompts = self.services.turns.prompts
        if prompts is None:
            raise ModelLoading
        return attrs.evolve(
            self.services.settings.policy,
            vocabulary=prompts.encoder.vocabulary,
            template_variables=prompts.encoder.template_variables,
            session_header=self.request.headers.get("X-Session-Id"),
            headers={
                name.lower(): value
                for name, value in self.request.headers.get_all()
                if name not in KEY_HEADERS
            },
        )
