"""The only fork between a stream and a whole answer: two writers with the same four steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from maple_protocols.adapter import Encoder, Fold, Frame, TurnEvent
from maple_protocols.timings import Progress

from maple.choices import AnyTurn
from maple.http.exchange import Exchange
from maple.http.wire import Wire, encode_json

Tells = Callable[[Progress], Sequence[Frame]]
"""A member of an encoder that makes frames of how far its request is."""

FLUSH_CHARACTERS = 16 * 1024
"""How much of a stream is gathered at most before it is handed to the socket."""


class Writer(Protocol):
    """Takes one turn to its client: ``start``, events, then ``end`` or ``fail``; ``close`` in any case."""

    async def start(self, turn: AnyTurn) -> None:
        """Wait as long as a refusal can still be a status of its own. Raises EngineError."""
        ...

    async def event(self, event: TurnEvent) -> None:
        """Take the next event; waits while the client is slow."""
        ...

    async def end(self) -> None:
        """Every event has been taken, Done the last."""
        ...

    async def fail(self, error: Exception) -> None:
        """Tell of a failure, or raise it where the status line has not gone out."""
        ...

    def close(self) -> None:
        """Let go of timers. Nothing is written afterwards."""
        ...


class JsonWriter:
    """The whole answer at once."""

    def __init__(self, handler: Exchange, fold: Fold) -> None:
        self._handler = handler
        self._fold = fold

    async def start(self, turn: AnyTurn) -> None:
        """Nothing is due before the end."""

    async def event(self, event: TurnEvent) -> None:
        """Add the event to the answer; nothing goes out yet."""
        self._fold.event(event)

    async def end(self) -> None:
        """Write the answer."""
        self._handler.write(encode_json(self._fold.body()))

    async def fail(self, error: Exception) -> None:
        """The failure is the answer."""
        raise error

    def close(self) -> None:
        """There are no timers."""


class StreamWriter:
    """Frames, as they come.

    What becomes ready within one turn of the loop goes out in one write. While the client does not take it,
    events wait where they are; a client that stops for good is dropped by its connection.
    """

    def __init__(
        self,
        handler: Exchange,
        encoder: Encoder,
        wire: Wire,
        progress: Callable[[], Progress],
        *,
        tells_progress: bool,
    ) -> None:
        """``progress`` tells how far the prompt is; a client may want to hear of it where the protocol can say it."""
        self._handler = handler
        self._encoder = encoder
        self._wire = wire
        self._now = progress
        self._started: Tells | None = getattr(encoder, "started", None)
        self._tick: Tells | None = getattr(encoder, "ping", None)
        self._waiting: Callable[[], Sequence[Frame]] | None = getattr(encoder, "waiting", None)
        limits = handler.services.limits
        self._silence, self._grain = limits.ping_seconds, limits.progress_seconds
        self._frames_of: Tells | None = getattr(encoder, "progress", None)
        self._progress = progress if tells_progress and self._frames_of else None
        self._progress_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._opened = False
        self._closed = False
        self._pending: list[str] = []
        self._size = 0
        self._flush_due = False
        self._sent: asyncio.Future[None] | None = None
        self._last_write = 0.0
        self._ping_timer: asyncio.TimerHandle | None = None

    async def start(self, turn: AnyTurn) -> None:
        """Send the status line and the opening once the job has its slot, or after so long a wait for it; at once
        where the protocol tells of waiting itself, and soon where the client wants to hear of progress.
        """
        if self._waiting is None:
            try:
                async with asyncio.timeout(self._grain if self._progress else self._silence):
                    await turn.admitted()
            except TimeoutError:
                pass  # it goes on waiting, with pings
        self._open()

    async def event(self, event: TurnEvent) -> None:
        """Queue the event's frames, and wait while the socket still holds what went before."""
        self._tell_progress(last=True)
        self._begin(sure=True)
        self._put(self._encoder.event(event))
        if self._size >= FLUSH_CHARACTERS:
            await self._drained()
            self._flush()
        if self._sent is not None:
            await self._drained()

    async def end(self) -> None:
        """Write what is left; the last chunk of the transfer follows as the handler finishes."""
        self._put(self._encoder.closing())
        await self._drained()
        self.close()
        self._write_pending()

    async def fail(self, error: Exception) -> None:
        """An error event, then the protocol's closing frames."""
        if not self._opened:
            raise error
        self._put(self._encoder.failure(self._handler.refusal_of(error).body))
        await self.end()

    def close(self) -> None:
        """Stop the timers; nothing is written afterwards."""
        self._closed = True
        for timer in (self._ping_timer, self._progress_timer):
            if timer is not None:
                timer.cancel()

    def _open(self) -> None:
        handler = self._handler
        handler.set_header("Content-Type", self._wire.media_type)
        handler.set_header("Cache-Control", "no-cache")
        handler.set_header("X-Accel-Buffering", "no")
        if handler.request.version == "HTTP/1.0":
            handler.close_after()  # nothing else tells such a client where the stream ends
        handler.connection.stream.set_nodelay(True)
        self._opened = True
        self._put(self._encoder.opening())
        self._begin()
        if self._started is not None and self._tick is not None:
            self._put(self._tick(self._now()))
        self._write_pending()  # the status line goes out even where the protocol opens with nothing
        self._send()
        self._ping_timer = self._loop.call_later(self._silence, self._ping)
        self._tell_progress()

    def _begin(self, *, sure: bool = False) -> None:
        """Tell once that the request has its slot, which it surely has before the first event."""
        if self._started is None:
            return
        now = self._now()
        if sure or now.state != "queued":
            self._put(self._started(now))
            self._started = None

    def _tell_progress(self, *, last: bool = False) -> None:
        """How far the prompt is, now and in a while; right before the first event for the last time."""
        if self._progress is None or self._frames_of is None:
            return
        if self._progress_timer is not None:
            self._progress_timer.cancel()
        if last or (self._sent is None and not self._pending):
            self._put(self._frames_of(self._progress()))
        if last:
            self._progress = None
        else:
            self._progress_timer = self._loop.call_later(self._grain, self._tell_progress)

    def _put(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            text = self._wire.text(frame)
            self._pending.append(text)
            self._size += len(text)
        if frames and not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Hand over what is pending, unless the socket still holds the last: its end calls again."""
        self._flush_due = False
        if self._closed or self._sent is not None or not self._pending:
            return
        self._write_pending()
        self._send()

    def _write_pending(self) -> None:
        self._handler.write("".join(self._pending).encode())
        self._pending.clear()
        self._size = 0

    def _send(self) -> None:
        self._last_write = self._loop.time()
        sent = self._handler.flush()
        if not sent.done():
            self._sent = sent
            sent.add_done_callback(self._on_sent)

    def _on_sent(self, _: asyncio.Future[None]) -> None:
        self._sent = None
        self._flush()

    async def _drained(self) -> None:
        while self._sent is not None:
            await asyncio.wait((self._sent,))

    def _ping(self) -> None:
        quiet = self._loop.time() - self._last_write
        # What is pending goes out in this turn of the loop, and was numbered before anything that is made now.
        if quiet >= self._silence and self._sent is None and not self._pending:
            self._begin()
            if content := b"" if self._pending else self._signs_of_life():
                self._handler.write(content)
                self._send()
            quiet = 0.0
        self._ping_timer = self._loop.call_later(max(self._silence - quiet, 0.001), self._ping)

    def _signs_of_life(self) -> bytes:
        frames = (
            self._waiting() if self._waiting is not None else self._tick(self._now()) if self._tick else ()
        )
        return "".join(map(self._wire.text, frames)).encode() or self._wire.ping
