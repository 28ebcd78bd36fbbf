"""The /v1/sessions routes: save, load, look at and delete the state of a conversation."""

from __future__ import annotations

import re
from typing import Literal

import attrs
from maple_protocols.adapter import Policy
from maple_protocols.errors import InvalidField
from maple_protocols.json import parse_body
from maple_protocols.rules import Schema

from maple.engine.errors import (
    SessionElsewhere,
    SessionMismatch,
    SessionsFull,
    SessionTampered,
    SessionUnknown,
)
from maple.engine.stats import SessionLoaded, SessionManifest
from maple.http.api_operation import BODY, ENGINE, Operation, Operations, json_of
from maple.http.application import Route
from maple.http.asking import check_engine
from maple.http.base import JsonHandler
from maple.http.refused import NotConfigured
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

    @classmethod
    def describe(cls, summary: str, answer: type, *refusals: type[Exception]) -> Operation:
        """One operation on a session. ``refusals`` are those beyond what all of them have."""
        return Operation(
            summary=summary,
            tag="Sessions",
            answers={200: json_of(answer)},
            refusals=(InvalidField, SessionUnknown, NotConfigured, *refusals),
            parameter={"type": "string", "pattern": f"^{SESSION_ID.pattern}$"},
        )

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

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """POST, to save or to load by the route."""
        saves = route.pattern.endswith("/save")
        files = (
            (SessionsFull,) if saves else (SessionElsewhere, SessionMismatch, SessionTampered, SessionsFull)
        )
        operation = cls.describe(
            "Save a live session." if saves else "Load a saved session.",
            SessionManifest if saves else SessionLoaded,
            *BODY,
            *ENGINE,
            *files,
        )
        request: Schema = {"type": "object", "description": "Not needed, and not looked at."}
        return {"post": attrs.evolve(operation, request=request, request_required=False)}

    def check(self, *groups: str) -> None:
        """These two need the engine, too."""
        super().check(*groups)
        check_engine(self.services.turns)

    async def respond(self, *groups: str) -> None:
        """The manifest of what was saved, or what was loaded."""
        await self.from_body(_check_body)
        engine = self.services.turns.engine
        saves = self.route.endswith("/save")
        act = engine.save_session if saves else engine.load_session
        self.write(encode_json(attrs.asdict(await act(self.owner, groups[0]))))


def _check_body(body: bytes) -> None:
    if body:
        parse_body(body)


class SessionManifestHandler(SessionHandler):
    """GET …/manifest."""

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """GET."""
        return {
            "get": cls.describe(
                "The last save of a session.", SessionManifest, SessionTampered, SessionElsewhere
            )
        }

    async def respond(self, *groups: str) -> None:
        """The last save."""
        manifest = await self.services.turns.engine.session_manifest(self.owner, groups[0])
        self.write(encode_json(attrs.asdict(manifest)))


class SessionDeleteHandler(SessionHandler):
    """DELETE."""

    methods = ("DELETE",)

    @classmethod
    def operations(cls, route: Route, policy: Policy) -> Operations:
        """DELETE."""
        return {"delete": cls.describe("Delete a session.", SessionDeleted)}

    async def respond(self, *groups: str) -> None:
        """Live and saved state go."""
        await self.services.turns.engine.delete_session(self.owner, groups[0])
        self.write(encode_json(attrs.asdict(SessionDeleted(id=groups[0]))))
