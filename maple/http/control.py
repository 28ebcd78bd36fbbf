"""POST …/ID/answer: end the reasoning of an answer that is being streamed."""

from __future__ import annotations

from typing import Literal

import attrs
from maple_protocols.adapter import GenerationAdapter, Policy
from maple_protocols.json import parse_body

from maple.http.api_operation import BODY, Operation, Operations, json_of
from maple.http.application import Route
from maple.http.base import JsonHandler
from maple.http.refused import AnswerUnknown, NotThinking
from maple.http.wire import encode_json


@attrs.frozen(kw_only=True)
class Control:
    """The reasoning ends with the next token."""

    id: str
    object: str
    answered: Literal[True]


class ControlHandler(JsonHandler):
    """POST below a generating route. A body is not needed, but if there is one it must be JSON."""

    methods = ("POST",)

    def initialize(self, route: str, adapter: GenerationAdapter) -> None:  # type: ignore[override]  # Tornado passes each route its own keywords
        """Called by Tornado with the route's options."""
        super().initialize(route)
        self.adapter = adapter

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """POST."""
        operation = Operation(
            summary="End the reasoning of an answer that is being streamed.",
            tag="Generation",
            answers={200: json_of(Control)},
            parameter={"type": "string"},
            refusals=(*BODY, AnswerUnknown, NotThinking),
            request={"type": "object", "description": "Not needed, and not looked at."},
            request_required=False,
        )
        return {"post": operation}

    async def respond(self, *groups: str) -> None:
        """Say so to the turn; its stream goes on with the answer."""
        await self.from_body(lambda body: parse_body(body) if body else None)
        turn = self.maple.answers.find(self.owner, groups[0])
        if turn is None:
            raise AnswerUnknown
        if not turn.thinking:
            raise NotThinking
        turn.answer_now()
        self.write(
            encode_json(
                attrs.asdict(Control(id=groups[0], object=str(self.adapter.controlled), answered=True))
            )
        )
