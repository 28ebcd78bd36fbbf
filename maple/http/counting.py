"""POST …/input_tokens: how long a prompt would be, without an answer to it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from maple_protocols.adapter import GenerationAdapter, JsonObject, Policy
from maple_protocols.ask import Ask, Conversation
from maple_protocols.errors import InvalidField, ModelNotFound

from maple.engine.errors import PromptTooLong
from maple.http.api_operation import BODY, ENGINE, Operation, Operations, json_of
from maple.http.application import Route
from maple.http.asking import AskHandler
from maple.http.wire import encode_json

STAND_IN = "-"
"""An input for a request without one: its message is dropped before counting."""


@attrs.frozen(kw_only=True)
class InputTokens:
    """The length of a prompt."""

    object: str
    input_tokens: int


class CountHandler(AskHandler):
    """POST to a generating route's ``/input_tokens``. The input itself may be left out."""

    def initialize(self, route: str, adapter: GenerationAdapter) -> None:  # type: ignore[override]  # Tornado passes each route its own keywords
        """Called by Tornado with the route's options."""
        super().initialize(route, adapter)
        self.reads = self.adapter = adapter
        self.prompt_param = adapter.prompt_param

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """POST, with any body that the route above takes."""
        adapter: GenerationAdapter = route.options["adapter"]
        operation = Operation(
            summary="How many tokens a prompt has.",
            tag="Generation",
            answers={200: json_of(InputTokens)},
            refusals=(*BODY, InvalidField, *ENGINE, ModelNotFound, PromptTooLong),
            request={"type": "object", "description": f"As for {adapter.path}."},
        )
        return {"post": operation}

    async def respond(self, *groups: str) -> None:
        """The count; instructions and tools alone where there is no input."""
        ask = await self.from_body(self._counted)
        self.tell_ignored(ask.ignored)
        tokens = await self.services.turns.count(ask, prepare=self.prepare_prompt)
        self.write(encode_json(self._answer(tokens)))

    def _answer(self, tokens: int) -> JsonObject:
        own: Callable[[int], JsonObject] | None = getattr(self.adapter, "counts", None)
        if own is not None:
            return own(tokens)
        return attrs.asdict(InputTokens(object=str(self.adapter.counted), input_tokens=tokens))

    def policy(self) -> Policy:
        """As AskHandler's, with the mark that nothing is generated."""
        return attrs.evolve(super().policy(), counting=True)

    def _counted(self, data: bytes) -> Ask:
        body, param = self.body_object(data), self.adapter.prompt_param
        if body.get(param) is not None or hasattr(self.adapter, "count_path"):
            return self.structured(body)
        ask = self.structured({**body, param: STAND_IN})
        if not isinstance(ask.prompt, Conversation):
            return ask
        return attrs.evolve(ask, prompt=attrs.evolve(ask.prompt, messages=ask.prompt.messages[:-1]))
