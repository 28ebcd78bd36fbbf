"""POST /tokenize, /detokenize and /apply-template: a prompt as the server reads it."""

from __future__ import annotations

import functools

from maple_protocols.adapter import Policy
from maple_protocols.ask import Ask
from maple_protocols.errors import InvalidField, ModelNotFound
from maple_protocols.openai.tokens import DetokenizeAdapter, TemplateAdapter, TokenAdapter, TokenizeAdapter
from maple_protocols.schema import json_schema

from maple.engine.errors import PromptTooLong
from maple.http.api_operation import BODY, ENGINE, Operation, Operations, first_sentence, json_of
from maple.http.application import Route
from maple.http.asking import AskHandler
from maple.http.wire import encode_json
from maple.prompt.template import TemplateFailed, TemplateRefused


class TokenHandler(AskHandler):
    """POST to a TokenAdapter's path."""

    def initialize(self, route: str, adapter: TokenAdapter) -> None:  # type: ignore[override]  # Tornado passes each route its own keywords
        """Called by Tornado with the route's options."""
        super().initialize(route)
        self.reads = self.adapter = adapter
        self.prompt_param = adapter.prompt_param

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """POST, as the adapter's tables have it."""
        adapter: TokenAdapter = route.options["adapter"]
        operation = Operation(
            summary=first_sentence(type(adapter)),
            tag="Generation",
            answers={200: json_of(adapter.answers["whole"])},
            refusals=(
                *BODY,
                InvalidField,
                *ENGINE,
                ModelNotFound,
                PromptTooLong,
                TemplateFailed,
                TemplateRefused,
            ),
            request=json_schema(adapter.request),
        )
        return {"post": operation}

    async def respond(self, *groups: str) -> None:
        """Tokenise or render on a budgeted thread."""
        work = functools.partial(self._answer, await self.ask())
        self.write(await self.maple.budget.run(self.account, work))

    def _answer(self, ask: Ask) -> bytes:
        facts = self.services.turns.token_facts(ask, renders=self.adapter.renders)
        self.maple.budget.note_counted(len(facts.ids))
        return encode_json(self.adapter.answer(ask, facts))


TOKEN_ROUTES = tuple(
    Route(pattern=adapter.path, handler=TokenHandler, options={"adapter": adapter})
    for adapter in (TokenizeAdapter(), DetokenizeAdapter(), TemplateAdapter())
)
