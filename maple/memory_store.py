"""Answers kept in memory for an hour, for clients that refer to what they have just been sent."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from typing import Protocol

import structlog
from maple_protocols.adapter import Kept

log = structlog.get_logger(__name__)

SECONDS = 3_600.0
PURGE_SECONDS = 60.0
MOST_BYTES = 64 << 20


class AnswerStore(Protocol):
    """Keeps answers by owner and id. Called on the event loop. Raises StoreFull or StoreBroken."""

    async def put(self, owner: str, kept: Kept) -> None:
        """Keep an answer."""
        ...

    async def get(self, owner: str, wanted: str) -> Kept | None:
        """The owner's answer of that id."""
        ...

    async def delete(self, owner: str, wanted: str) -> bool:
        """Forget an answer; False where there is none."""
        ...

    async def keep_purging(self) -> None:
        """Forget in time what is too old, until cancelled."""
        ...

    def close(self) -> None:
        """Let go of what is held."""
        ...


class MemoryStore:
    """An AnswerStore that never touches the disk. ``most_bytes`` bound all answers together, as JSON; what is
    oldest goes first. An answer that is larger than all of that is not kept.
    """

    def __init__(self, *, seconds: float = SECONDS, most_bytes: int = MOST_BYTES) -> None:
        self._seconds = seconds
        self._room = self._most = most_bytes
        self._kept: OrderedDict[tuple[str, str], tuple[float, bytes]] = OrderedDict()

    async def put(self, owner: str, kept: Kept) -> None:
        """As AnswerStore's."""
        data = await asyncio.to_thread(_packed, kept)
        if len(data) > self._most:
            log.warning("store.answer_too_large", bytes=len(data))
            return
        self._forget((owner, kept.id))
        self._kept[owner, kept.id] = time.monotonic() + self._seconds, data
        self._room -= len(data)
        self._purge()

    async def get(self, owner: str, wanted: str) -> Kept | None:
        """As AnswerStore's."""
        self._purge()
        found = self._kept.get((owner, wanted))
        return None if found is None else await asyncio.to_thread(_unpacked, found[1])

    async def delete(self, owner: str, wanted: str) -> bool:
        """As AnswerStore's."""
        self._purge()
        return self._forget((owner, wanted))

    async def keep_purging(self) -> None:
        """As AnswerStore's."""
        while True:
            await asyncio.sleep(PURGE_SECONDS)
            self._purge()

    def close(self) -> None:
        """As AnswerStore's."""
        self._kept.clear()

    def _purge(self) -> None:
        now = time.monotonic()
        while self._kept:
            oldest, (until, _) = next(iter(self._kept.items()))
            if self._room >= 0 and until > now:
                return
            self._forget(oldest)

    def _forget(self, key: tuple[str, str]) -> bool:
        found = self._kept.pop(key, None)
        if found is not None:
            self._room += len(found[1])
        return found is not None


def _packed(kept: Kept) -> bytes:
    fields = {"id": kept.id, "created": kept.created, "items": kept.items, "body": kept.body}
    return json.dumps(fields, separators=(",", ":")).encode()


def _unpacked(data: bytes) -> Kept:
    fields = json.loads(data)
    return Kept(id=fields["id"], created=fields["created"], items=tuple(fields["items"]), body=fields["body"])
