"""GET /health, /healthz and /readyz: open to everyone, and cheap."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import attrs
from maple_protocols.adapter import JsonObject, Policy
from maple_protocols.rules import Doc

from maple.engine.api import EngineStatus
from maple.engine.loading import Loading
from maple.http.api_operation import Operation, Operations, first_sentence, json_of
from maple.http.application import Route
from maple.http.base import JsonHandler
from maple.http.wire import encode_json

SERVICE = "maple"
ReadinessStatus = Literal["ready", "loading", "failed", "draining"]
_READINESS: dict[EngineStatus, ReadinessStatus] = {"loading": "loading", "error": "failed", "ok": "ready"}


@attrs.frozen(kw_only=True)
class Health:
    """How the server does. What is not known before the model is loaded is null."""

    status: EngineStatus
    model: str
    model_path: str
    device: str | None
    dtype: str | None
    attention: str | None
    load_seconds: float | None
    queue_depth: int
    active: int
    version: str
    error: str | None
    loading: Annotated[Loading | None, Doc("There only while the model loads; bytes.")] = None


@attrs.frozen(kw_only=True)
class Liveness:
    """The process answers."""

    status: Literal["ok"] = "ok"
    service: str = SERVICE


@attrs.frozen(kw_only=True)
class Readiness:
    """Whether requests can be sent here, and who answers them."""

    status: ReadinessStatus
    service: str = SERVICE
    model: str
    model_path: str
    version: str


def encode(answer: Health | Liveness | Readiness) -> bytes:
    """An answer in JSON."""
    fields: JsonObject = attrs.asdict(answer)
    if fields.get("loading", 0) is None:
        del fields["loading"]
    return encode_json(fields)


class ProbeHandler(JsonHandler):
    """What the probes have in common: no key, and a table for each answer."""

    needs_key = False
    is_probe = True
    is_routine = True
    answer: ClassVar[type]
    statuses: ClassVar[tuple[int, ...]] = (200, 503)

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET, with the same table whatever the status."""
        answers = dict.fromkeys(cls.statuses, json_of(cls.answer))
        operation = Operation(
            summary=first_sentence(cls), tag="Operations", answers=answers, needs_key=cls.needs_key
        )
        return {"get": operation}


class HealthHandler(ProbeHandler):
    """How the server does, in detail: 200 while it loads or serves, 503 once the load has failed."""

    answer = Health

    async def respond(self, *groups: str) -> None:
        """Ten keys for people and orchestrators, and what went wrong."""
        turns, served = self.services.turns, self.services.turns.engine.served
        stats = turns.engine.stats()
        if turns.status == "error":
            self.set_status(503)
        answer = Health(
            status=turns.status,
            model=self.services.settings.model_id,
            model_path=self.services.model_path,
            device=served.device if served else None,
            dtype=served.dtype if served else None,
            attention=served.attention if served else None,
            load_seconds=served.load_seconds if served else None,
            queue_depth=stats.waiting,
            active=stats.running,
            version=self.services.version,
            error=turns.error,
            loading=turns.engine.loading.now if turns.status == "loading" else None,
        )
        self.write(encode(answer))


class LivenessHandler(ProbeHandler):
    """The process answers."""

    answer = Liveness
    statuses = (200,)

    async def respond(self, *groups: str) -> None:
        """Always the same."""
        self.write(encode(Liveness()))


class ReadinessHandler(ProbeHandler):
    """Whether requests can be sent here, and who answers them, as fixed at boot."""

    answer = Readiness

    async def respond(self, *groups: str) -> None:
        """The engine is not asked for more than its state."""
        status = self._status()
        if status != "ready":
            self.set_status(503)
        answer = Readiness(
            status=status,
            model=self.services.settings.model_id,
            model_path=self.services.model_path,
            version=self.services.version,
        )
        self.write(encode(answer))

    def _status(self) -> ReadinessStatus:
        turns = self.services.turns
        if turns.engine.draining:
            return "draining"
        return _READINESS[turns.status]
