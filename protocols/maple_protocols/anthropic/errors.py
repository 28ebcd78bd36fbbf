"""Errors in Anthropic's shape, under the statuses that its SDKs raise by."""

from __future__ import annotations

from collections.abc import Mapping

from maple_protocols.dialect import Failure, Reply
from maple_protocols.errors import ErrorBody

OVERLOADED = 529
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
_OVERLOADED_CODES = frozenset({"engine_overloaded", "model_loading", "shutting_down", "replica_lost"})
RETRY_SECONDS = (1, 60)
RETRY_DEFAULT = 5


def reply(failure: Failure) -> Reply:
    """The refusal as it goes out: every 503 is 529, since the SDKs take that for an overload."""
    status, headers = failure.status, dict(failure.headers)
    if status == 503:
        status = OVERLOADED
        least, most = RETRY_SECONDS
        headers["Retry-After"] = str(min(max(int(headers.get("Retry-After", RETRY_DEFAULT)), least), most))
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    told = {"type": kind, "message": _message(failure)}
    return Reply(
        status=status,
        headers=headers,
        body={"type": "error", "error": told, "request_id": failure.request_id},
    )


def _message(failure: Failure) -> str:
    """Clients compact their history where they read of a prompt that is too long."""
    if failure.tokens is None:
        return failure.error.message
    found, most = failure.tokens
    return f"prompt is too long: {found} tokens > {most} maximum"


def type_of(error: ErrorBody) -> str:
    """The type of a failure behind the status line."""
    if error.code in _OVERLOADED_CODES:
        return "overloaded_error"
    return "api_error" if error.type == "server_error" else "invalid_request_error"
