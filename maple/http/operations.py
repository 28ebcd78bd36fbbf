"""GET /metrics and /v1/stats: what operators watch."""

from __future__ import annotations

import attrs

from maple.http.base import JsonHandler
from maple.http.wire import encode_json
from maple.metrics import CONTENT_TYPE

TEXT_TYPE = "text/plain; charset=utf-8"


class MetricsHandler(JsonHandler):
    """Prometheus's text format."""

    def open_to_all(self) -> bool:
        """Scrapers often cannot send a key: the operator decides."""
        return self.services.settings.metrics_public

    async def respond(self, *groups: str) -> None:
        """All metrics."""
        self.set_header("Content-Type", CONTENT_TYPE)
        self.write(self.services.metrics.exposition())


class StatsHandler(JsonHandler):
    """The engine's counts: one line for people, JSON for programs that ask for it."""

    async def respond(self, *groups: str) -> None:
        """The counts as of now."""
        counts = attrs.asdict(self.services.turns.engine.stats())
        status = self.services.turns.status
        if self._wants_json():
            self.write(encode_json({"model": self.services.settings.model_id, "status": status, **counts}))
            return
        words = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
        self.set_header("Content-Type", TEXT_TYPE)
        self.write(f"{self.services.settings.model_id} {status}: {words}\n")

    def _wants_json(self) -> bool:
        wanted = self.get_query_argument("format", "")
        return wanted == "json" or (
            not wanted and "application/json" in self.request.headers.get("Accept", "")
        )
