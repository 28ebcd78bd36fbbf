"""What the engine raises. No HTTP words."""

from __future__ import annotations

from typing import Literal

import attrs

from maple.errors import MapleError


class EngineError(MapleError):
    """The engine could not do a job."""


@attrs.define(eq=False)
class ModelLoading(EngineError):
    """The weights are still loading, for so many seconds if that can be told."""

    seconds_left: int | None = None


@attrs.define(eq=False)
class ModelFailed(EngineError):
    """The load failed, or the engine broke. ``reason`` is for logs and /health, not for clients."""

    reason: str


@attrs.define(eq=False)
class EngineOverloaded(EngineError):
    """The queue is full, or the job waited too long."""

    reason: Literal["queue_full", "queue_timeout"]


class ShuttingDown(EngineError):
    """The server drains."""


class JobCancelled(EngineError):
    """``Ticket.cancel`` was called: raised to whoever still waits on the ticket, lest it wait forever."""


class GenerationFailed(EngineError):
    """The model broke while it generated this sequence; the cause has been logged."""


class ReplicaLost(EngineError):
    """The replica that ran this job has gone, and it could not be run again elsewhere without being seen twice."""


@attrs.define(eq=False)
class PromptTooLong(EngineError):
    """The prompt does not fit. ``limit`` and ``got`` in tokens; ``got`` may be a lower bound."""

    limit: int
    got: int


class SessionError(EngineError):
    """A session could not be saved, loaded or found."""


class SessionUnknown(SessionError):
    """No such session, or none of this owner's."""


class SessionBusy(SessionError):
    """Somebody else has the session's folder, or its disk does not answer."""


@attrs.define(eq=False)
class SessionTampered(SessionError):
    """A saved session is not what was saved. ``reason`` is for the log."""

    reason: str


@attrs.define(eq=False)
class SessionMismatch(SessionError):
    """A session was saved by another model or in another format. ``reason`` is for the log."""

    reason: str


class SessionElsewhere(SessionError):
    """A session was saved on a machine of the cluster that does not answer, where no other can read it."""


@attrs.define(eq=False)
class SessionsFull(SessionError):
    """There is no room for a session. What was saved before is intact. ``reason`` is for the log."""

    reason: str
