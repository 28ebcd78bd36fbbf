"""Refusals that a protocol adapter can raise, and the one error shape of the wire."""

from __future__ import annotations

import attrs

ECHO_LIMIT = 64
"""Client text in a message or a param is cut at this many characters."""


@attrs.frozen(kw_only=True)
class ErrorBody:
    """The OpenAI error object; all four keys are always on the wire."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None

    def as_wire(self) -> dict[str, object]:
        """``{"error": {"message", "type", "param", "code"}}``."""
        return {"error": attrs.asdict(self)}


class RequestError(Exception):
    """A request the protocol refuses. Leaves carry fields; ``body`` is what the client sees."""

    status: int = 400

    @property
    def body(self) -> ErrorBody:
        """The error object that goes out."""
        raise NotImplementedError


@attrs.define(eq=False)
class InvalidField(RequestError):
    """A field is wrong. ``param`` is its path, such as ``messages[1].content``."""

    param: str
    message: str
    code: str | None = None

    @property
    def body(self) -> ErrorBody:
        """Blames the field."""
        return ErrorBody(
            message=self.message, type="invalid_request_error", param=self.param[:ECHO_LIMIT], code=self.code
        )


@attrs.define(eq=False)
class ModelNotFound(RequestError):
    """Another model than the served one was named, and the server is strict about it."""

    model: str
    param: str | None = "model"
    status = 404

    @property
    def body(self) -> ErrorBody:
        """Names the model."""
        return ErrorBody(
            message=f"the model {self.model[:ECHO_LIMIT]!r} does not exist",
            type="invalid_request_error",
            param=self.param,
            code="model_not_found",
        )
