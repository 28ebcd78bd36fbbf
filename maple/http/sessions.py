"""The /v1/sessions routes: names are checked and the setting is asked for; nothing is ever saved yet."""

from __future__ import annotations

import re

from maple_protocols.errors import InvalidField
from maple_protocols.json import parse_body

from maple.http.base import JsonHandler
from maple.http.errors import NotConfigured, SessionUnknown
from maple.http.generate import check_engine

SESSION_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class SessionHandler(JsonHandler):
    """What all session routes have in common."""

    def check(self, *groups: str) -> None:
        """The id first, then the setting."""
        if not SESSION_ID.fullmatch(groups[0]):
            raise InvalidField(
                param="session_id",
                message=f"session_id must match {SESSION_ID.pattern}",
                code="invalid_parameter",
            )
        if not self.services.settings.sessions:
            raise NotConfigured("MAPLE_SESSION_DIR")

    async def respond(self, *groups: str) -> None:
        """No session is known."""
        raise SessionUnknown


class SessionActionHandler(SessionHandler):
    """POST …/save and …/load: a body is not needed, but if there is one it must be JSON."""

    methods = ("POST",)

    def check(self, *groups: str) -> None:
        """These two need the engine, too."""
        super().check(*groups)
        check_engine(self.services.turns)

    async def respond(self, *groups: str) -> None:
        """No session is known, but what was sent must be sound."""
        body = self.take_body()
        if body:
            parse_body(body)
        raise SessionUnknown


class SessionManifestHandler(SessionHandler):
    """GET …/manifest."""


class SessionDeleteHandler(SessionHandler):
    """DELETE."""

    methods = ("DELETE",)
