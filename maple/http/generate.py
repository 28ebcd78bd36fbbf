"""One handler for every protocol that generates: body → ask → turn → writer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import structlog
from maple_protocols.adapter import GenerationAdapter, KeepingAdapter, Policy
from maple_protocols.ask import Ask
from maple_protocols.errors import InvalidField, ModelNotFound
from maple_protocols.rules import Schema
from maple_protocols.schema import answer_schema, json_schema

from maple.choices import AnyTurn
from maple.engine.errors import EngineOverloaded, GenerationFailed, PromptTooLong, ReplicaLost
from maple.http.api_operation import (
    BODY,
    ENGINE,
    EVENTS,
    JSON,
    Operation,
    Operations,
    Refusals,
    event_stream,
    first_sentence,
)
from maple.http.application import Route
from maple.http.asking import AskHandler
from maple.http.errors import refusal
from maple.http.stored import KEEPING, Recorder, continued
from maple.http.wire import FRAMINGS
from maple.http.writers import JsonWriter, StreamWriter, Writer
from maple.observe.metrics import TurnTimes

log = structlog.get_logger(__name__)

TURN: Refusals = (PromptTooLong, EngineOverloaded, ReplicaLost, GenerationFailed)


class GenerateHandler(AskHandler):
    """POST to a GenerationAdapter's path."""

    def initialize(  # type: ignore[override]  # Tornado passes each route its own keywords
        self, route: str, adapter: GenerationAdapter, keeping: KeepingAdapter | None
    ) -> None:
        """Called by Tornado with the route's options. ``keeping`` is the adapter, where it is of that kind."""
        super().initialize(route, adapter)
        self.reads = self.adapter = adapter
        self.keeping = keeping
        self.prompt_param = adapter.prompt_param
        self._lease: asyncio.Timeout | None = None
        self._first_token = 0.0

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """POST, as the adapter's tables have it."""
        adapter: GenerationAdapter = route.options["adapter"]
        answers: Mapping[str, type] = getattr(adapter, "answers", {})
        event = answer_schema(answers["event"]) if "event" in answers else {}
        whole: Schema = answer_schema(answers["whole"]) if "whole" in answers else {"type": "object"}
        kept = KEEPING if route.options["keeping"] else ()
        operation = Operation(
            summary=first_sentence(type(adapter)),
            tag="Generation",
            answers={200: {JSON: whole, EVENTS: event_stream(event)}},
            refusals=(
                *BODY,
                InvalidField,
                *ENGINE,
                ModelNotFound,
                *TURN,
                *kept,
            ),
            request=json_schema(adapter.request, closed=policy.refuses_unknown(closed=adapter.closed)),
        )
        return {"post": operation}

    async def respond(self, *groups: str) -> None:
        """Generate, for as long as the client is there."""
        try:
            async with asyncio.timeout(None) as self._lease:
                if not self.client_left:
                    await self._generate(await self._whole_ask())
        except TimeoutError:
            if not self.client_left:
                raise
        finally:
            self._lease = None

    def disconnected(self) -> None:
        """Abandon whatever ``respond`` awaits; on its way out it cancels the turn."""
        if self._lease is not None:
            self._lease.reschedule(asyncio.get_running_loop().time())

    async def _whole_ask(self) -> Ask:
        """What was sent, with what was kept of the answer that it goes on from."""
        return await continued(await self.ask(), self.keeping, self.services.store, self.owner)

    async def _generate(self, ask: Ask) -> None:
        try:
            await self._answer(ask)
        finally:
            self.services.metrics.turn_ended(self.request.request_time())

    async def _answer(self, ask: Ask) -> None:
        turn = await self.services.turns.open(
            ask, owner=self.owner, request_id=self.request_id, prepare=self.prepare_prompt
        )
        if self.span is not None:
            self.span.submitted()
        writer = self._writer(ask, turn)
        try:
            with self.maple.answers.running(self.owner, turn):
                await writer.start(turn)
                await self._pass_on(turn, writer, self._recorder(ask, turn))
        except Exception as error:
            await writer.fail(error)  # raises it again where a status can still tell
            self._log_in_band(error)
        finally:
            turn.cancel()
            writer.close()

    async def _pass_on(self, turn: AnyTurn, writer: Writer, recorder: Recorder) -> None:
        async with contextlib.aclosing(turn.events()) as events:
            async for event in events:
                if not self._first_token:
                    self._first_token = self.request.request_time()
                await recorder.event(event)
                await writer.event(event)
        self._note_finish(turn)
        await writer.end()

    def _recorder(self, ask: Ask, turn: AnyTurn) -> Recorder:
        return Recorder(ask, turn.identity, self.keeping, store=self.services.store, owner=self.owner)

    def _writer(self, ask: Ask, turn: AnyTurn) -> Writer:
        if ask.stream:
            framing = FRAMINGS[getattr(self.adapter, "framing", "sse")]
            encoder = self.adapter.encoder(ask, turn.identity)
            return StreamWriter(self, encoder, framing, turn.progress, tells_progress=ask.progress)
        return JsonWriter(self, self.adapter.fold(ask, turn.identity))

    def _note_finish(self, turn: AnyTurn) -> None:
        if turn.finish is not None:
            times = TurnTimes(
                finish=turn.finish,
                reasoning_tokens=turn.reasoning_tokens,
                first_token_seconds=self._first_token,
            )
            self.services.metrics.turn_finished(times)
            if self.span is not None:
                self.span.generated(turn.finish, reasoning_tokens=turn.reasoning_tokens)

    def _log_in_band(self, error: Exception) -> None:
        """The access line will say 200."""
        if self.span is not None:
            self.span.failed(type(error).__name__)
        if refusal(error) is None:
            self.log_exception(type(error), error, error.__traceback__)
        log.warning("http.stream_failed", route=self.route, reason=type(error).__name__)
