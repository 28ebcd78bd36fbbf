"""The one path of a request: Ask → prompt ids → Job → pieces → parser chain → turn events.

Streaming or not is unknown here; a writer downstream decides. Everything runs on the event loop's thread,
except templating and tokenising, which run in the prompt pool.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterable

import structlog
from maple_plugins.compose import Chain
from maple_plugins.events import ContentDelta, ParserEvent, ToolCall
from maple_protocols.adapter import Done, FinishReason, Identity, NumberedCall, TurnEvent, Usage
from maple_protocols.timings import Progress

from maple.engine.api import Finish, Piece, Ticket
from maple.turn_scores import ScoredText
from maple.turn_times import spent

log = structlog.get_logger(__name__)


class Turn:
    """One admitted or waiting request. Iterate it once; ``cancel`` at any time."""

    def __init__(
        self,
        *,
        identity: Identity,
        request_id: str,
        ticket: Ticket,
        chain: Chain | None,
        fills_window: bool = False,
        scored: bool = False,
        closable: bool = False,
    ) -> None:
        self.identity = identity
        self._fills_window = fills_window
        self.finish: Finish | None = None
        """The engine's own account, once the turn is done."""
        self.reasoning_tokens = 0
        self._request_id = request_id
        self._ticket = ticket
        self._chain = chain
        self._scored = ScoredText(chain) if scored else None
        self._closable = closable
        self._offsets: list[int] = []
        self._calls = 0

    async def admitted(self) -> None:
        """Return when the job has its slot; raises an EngineError where it never gets one."""
        await self._ticket.admitted()

    def progress(self) -> Progress:
        """How far the prompt is; all of it is computed once anything has come of it."""
        status = self._ticket.status()
        return Progress(
            state="queued" if status.state == "queued" else "prefill",
            position=status.position,
            total=status.total,
            cached=status.cached,
            processed=status.processed,
            time_ms=round(status.seconds * 1000),
        )

    def cancel(self) -> None:
        """Drop the job within one token. Idempotent, and harmless once the turn is done."""
        self._ticket.cancel()

    @property
    def thinking(self) -> bool:
        """Whether it is in a reasoning block, or begins with one, that ``answer_now`` closes."""
        open_ = self._chain is not None and self._chain.reasoning_end is None
        return self._closable and open_ and self.finish is None

    def answer_now(self) -> None:
        """Close the reasoning block at the next token."""
        self._ticket.answer_now()

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """Yield reasoning, content and calls in generation order, then one Done. Raises EngineError."""
        try:
            async for item in self._ticket:
                if isinstance(item, Finish):
                    for event in self._rest(item):
                        yield self._numbered(event)
                    yield self._done(item)
                    return
                self._offsets.extend(item.offsets)
                for event in self._parsed(item):
                    yield self._numbered(event)
        finally:
            self._log_fault()

    def _parsed(self, piece: Piece) -> Iterable[ParserEvent]:
        if self._scored is not None:
            return self._scored.feed(piece.text, piece.scores)
        if self._chain is not None:
            return self._chain.feed(piece.text)
        return (ContentDelta(piece.text),) if piece.text else ()

    def _rest(self, finish: Finish) -> Iterable[ParserEvent]:
        last = self._scored or self._chain
        return last.close(finish.reason) if last is not None else ()

    def _log_fault(self) -> None:
        """Malformed markup has gone back as text; that the model wrote some is for operators to know."""
        if self._chain is not None and self._chain.fault is not None:
            log.warning("turn.markup_malformed", request_id=self._request_id, fault=self._chain.fault)

    def _numbered(self, event: ParserEvent) -> TurnEvent:
        if not isinstance(event, ToolCall):
            return event
        call = NumberedCall(
            index=self._calls, id=f"call_{secrets.token_hex(12)}", name=event.name, arguments=event.arguments
        )
        self._calls += 1
        return call

    def _done(self, finish: Finish) -> Done:
        self.finish = finish
        self.reasoning_tokens = self._count_reasoning()
        reason: FinishReason = finish.reason
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        usage = Usage(
            prompt_tokens=finish.prompt_tokens,
            completion_tokens=finish.completion_tokens,
            cached_tokens=finish.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )
        return Done(
            finish=reason,
            usage=usage,
            at=int(time.time()),
            timings=spent(finish),
            stop=finish.stop,
            window=reason == "length" and self._fills_window,
        )

    def _count_reasoning(self) -> int:
        """Ids whose text begins before the closing marker does; all of them while the block is open."""
        if self._chain is None:
            return 0
        end = self._chain.reasoning_end
        return len(self._offsets) if end is None else sum(offset < end for offset in self._offsets)
