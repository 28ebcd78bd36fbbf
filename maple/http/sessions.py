"""The /v1/sessions routes: save, load, look at and delete the state of a conversation."""

from __future__ import annotations

import re
from typing import Literal

import attrs
from maple_protocols.errors import InvalidField
from maple_protocols.json import parse_body

from maple.http.base import JsonHandler
from maple.http.errors import NotConfigured
from maple.http.generate import check_engine
from maple.http.wire import encode_json

SESSION_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


@attrs.frozen(kw_only=True)
class SessionDeleted:
    """A session is gone, live and saved."""

    id: str
    object: Literal["session.deleted"] = "session.deleted"
    deleted: Literal[True] = True


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


class SessionActionHandler(SessionHandler):
    """POST …/save and …/load: a body is not needed, but if there is one it must be JSON."""

    methods = ("POST",)

    def check(self, *groups: str) -> None:
        """These two need the engine, too."""
        super().check(*groups)
        check_engine(self.services.turns)

    async def respond(self, *groups: str) -> None:
        """The manifest of what was saved, or what was loaded."""
        body = self.take_body()
        if body:
            parse_body(body)
        engine = self.services.turns.engine
        saves = self.route.endswith("/save")
        act = engine.save_session if saves else engine.load_session
        self.write(encode_json(attrs.asdict(await act(self.owner, groups[0]))))


class SessionManifestHandler(SessionHandler):
    """GET …/manifest."""

    async def respond(self, *groups: str) -> None:
        """The last save."""
        manifest = await self.services.turns.engine.session_manifest(self.owner, groups[0])
        self.write(encode_json(attrs.asdict(manifest)))


class SessionDeleteHandler(SessionHandler):
    """DELETE."""

    methods = ("DELETE",)

    async def respond(self, *groups: str) -> None:
        """Live and saved state go."""
        await self.services.turns.engine.delete_session(self.owner, groups[0])
        self.write(encode_json(attrs.asdict(SessionDeleted(id=groups[0]))))
