"""Work that a request causes before the engine's queue counts it: memory, threads, and whose turn it is.

Everything is counted by account: the key's owner, or the address where the server has no key. A stranger to a
server with keys has no account, since nothing is held or done for him.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from maple.engine.errors import ShuttingDown
from maple.http.refused import TooManyBodies
from maple.http.services import Limits
from maple.observe.metrics import Metrics

T = TypeVar("T")


class Budget:
    """One per server; used on the event loop's thread.

    An account never has all the threads, so another's work waits for no more than a free one; among those that
    wait, accounts take turns, and each account's own are first in, first out.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._held: Counter[str] = Counter()
        self._busy: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._threads = concurrent.futures.ThreadPoolExecutor(
            limits.prepare_threads, thread_name_prefix="maple-prepare"
        )
        self._closed = False
        self._metrics = metrics.budget
        self._metrics.body_bytes.set_function(lambda: self.held)
        self._metrics.threads.set_function(self._busy.total)
        self._metrics.waiting.set_function(lambda: self.waiting)

    @property
    def held(self) -> int:
        """Bytes of bodies in memory, all accounts together."""
        return self._held.total()

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return sum(map(len, self._waiting.values()))

    def hold(self, account: str, size: int) -> None:
        """Count ``size`` further bytes of a body. Raises TooManyBodies, and then does not."""
        if (
            self.held + size > self._limits.bodies_bytes
            or self._held[account] + size > self._limits.bodies_bytes_each
        ):
            self._metrics.refused.inc()
            raise TooManyBodies
        self._held[account] += size

    def let_go(self, account: str, size: int) -> None:
        """Count them no longer."""
        self._held[account] -= size
        if not self._held[account]:
            del self._held[account]

    def note_inflated(self, size: int) -> None:
        """So many bytes came out of a compressed body. Any thread may call this."""
        self._metrics.inflated_bytes.inc(size)

    def note_structured(self, body: Mapping[str, object]) -> None:
        """The messages, tools and the like of a body are about to be structured. Any thread may call this."""
        self._metrics.structured_items.inc(
            sum(len(value) for value in body.values() if isinstance(value, list))
        )

    def note_counted(self, tokens: int) -> None:
        """A prompt came to so many ids."""
        self._metrics.counted_tokens.inc(tokens)

    async def run(self, account: str, work: Callable[[], T]) -> T:
        """The result of ``work``, on a thread, when it is the account's turn. Raises TooManyBodies after a long wait.

        The thread counts as the account's until ``work`` has returned, whoever still waits for that.
        """
        await self._turn(account)
        if self._closed:
            raise ShuttingDown
        loop = asyncio.get_running_loop()
        future = self._threads.submit(work)

        def done(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody has a turn any more
                loop.call_soon_threadsafe(self._end_turn, account)

        future.add_done_callback(done)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed:
                raise ShuttingDown from None
            raise

    def close(self) -> None:
        """Begin nothing more; what is under way ends by itself."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, account: str) -> None:
        if self._may_begin(account):
            self._busy[account] += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account, deque()).append(turn)
        try:
            async with asyncio.timeout(self._limits.prepare_seconds):
                await turn
        except BaseException as error:
            self._give_up(account, turn)
            if isinstance(error, TimeoutError):
                self._metrics.refused.inc()
                raise TooManyBodies from None
            raise

    def _may_begin(self, account: str) -> bool:
        limits = self._limits
        return (
            self._busy.total() < limits.prepare_threads and self._busy[account] < limits.prepare_threads_each
        )

    def _end_turn(self, account: str) -> None:
        self._busy[account] -= 1
        if not self._busy[account]:
            del self._busy[account]
        while (following := next(filter(self._may_begin, self._waiting), None)) is not None:
            turn = self._waiting[following].popleft()
            self._waiting.move_to_end(following)
            if not self._waiting[following]:
                del self._waiting[following]
            if not turn.done():  # else whoever waited is about to give up
                self._busy[following] += 1
                turn.set_result(None)

    def _give_up(self, account: str, turn: asyncio.Future[None]) -> None:
        if not turn.cancelled():
            self._end_turn(account)  # it was given just too late
            return
        turns = self._waiting.get(account, deque())
        with contextlib.suppress(ValueError):
            turns.remove(turn)
        if not turns:
            self._waiting.pop(account, None)
