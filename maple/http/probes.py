"""GET /health, /healthz and /readyz: open to everyone, and cheap."""

from __future__ import annotations

from maple.http.base import JsonHandler
from maple.http.wire import encode_json

SERVICE = "maple"


class HealthHandler(JsonHandler):
    """How the server does, in detail: 200 while it loads or serves, 503 once the load has failed."""

    needs_key = False

    async def respond(self, *groups: str) -> None:
        """Ten keys for people and orchestrators, and what went wrong."""
        turns, served = self.services.turns, self.services.turns.engine.served
        stats = turns.engine.stats()
        if turns.status == "error":
            self.set_status(503)
        answer = {
            "status": turns.status,
            "model": self.services.settings.model_id,
            "model_path": self.services.model_path,
            "device": served and served.device,
            "dtype": served and served.dtype,
            "attention": served and served.attention,
            "load_seconds": served and served.load_seconds,
            "queue_depth": stats.waiting,
            "active": stats.running,
            "version": self.services.version,
            "error": turns.error,
        }
        self.write(encode_json(answer))


class LivenessHandler(JsonHandler):
    """The process answers."""

    needs_key = False

    async def respond(self, *groups: str) -> None:
        """Always the same."""
        self.write(encode_json({"status": "ok", "service": SERVICE}))


class ReadinessHandler(JsonHandler):
    """Whether requests can be sent here, and who answers them, as fixed at boot."""

    needs_key = False

    async def respond(self, *groups: str) -> None:
        """The engine is not asked for more than its state."""
        status = self._status()
        if status != "ready":
            self.set_status(503)
        answer = {
            "status": status,
            "service": SERVICE,
            "model": self.services.settings.model_id,
            "model_path": self.services.model_path,
            "version": self.services.version,
        }
        self.write(encode_json(answer))

    def _status(self) -> str:
        turns = self.services.turns
        if turns.engine.draining:
            return "draining"
        return {"loading": "loading", "error": "failed", "ok": "ready"}[turns.status]
