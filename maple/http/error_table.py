"""The one table from exceptions to answers: status, type, code, message and headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from maple_protocols.errors import ECHO_LIMIT

from maple.engine.errors import (
    EngineOverloaded,
    GenerationFailed,
    JobCancelled,
    ModelFailed,
    ModelLoading,
    PromptTooLong,
    ReplicaLost,
    SessionBusy,
    SessionElsewhere,
    SessionMismatch,
    SessionsFull,
    SessionTampered,
    SessionUnknown,
    ShuttingDown,
)
from maple.http.refused import (
    AnswerUnknown,
    BodyCorrupt,
    BodyTimeout,
    HostNotAllowed,
    InvalidKey,
    MethodNotAllowed,
    NotConfigured,
    NotSupported,
    NotThinking,
    OriginNotAllowed,
    PayloadTooLarge,
    ResponseUnknown,
    RouteNotFound,
    TooManyBodies,
    TooManyConnections,
    UnsupportedMediaType,
)
from maple.http.rows import RETRY_SECONDS, Row
from maple.prompt.grammar import GrammarRefused
from maple.prompt.template import TemplateFailed, TemplateRefused
from maple.responses_store import StoreBroken, StoreBusy, StoreFull

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


def _say(message: str) -> Callable[[Any], str]:
    return lambda _: message


def _retry(_: Exception) -> Mapping[str, str]:
    return {"Retry-After": RETRY_SECONDS}


def _route_not_found(error: RouteNotFound) -> str:
    hint = f"; did you mean {error.near}?" if error.near else ""
    return f"no route has the path {error.path[:ECHO_LIMIT]}{hint}"


_QUEUE = {
    "queue_full": "too many requests are waiting",
    "queue_timeout": "the request waited too long for its turn",
}

TABLE: Mapping[type[Exception], Row] = {
    RouteNotFound: Row(status=404, type=INVALID_REQUEST, code="route_not_found", message=_route_not_found),
    MethodNotAllowed: Row(
        status=405,
        type=INVALID_REQUEST,
        code="method_not_allowed",
        message=lambda error: f"this route answers {error.allow}",
        headers=lambda error: {"Allow": error.allow},
    ),
    HostNotAllowed: Row(
        status=403,
        type=INVALID_REQUEST,
        code="host_not_allowed",
        message=lambda error: (
            f"the host {error.host[:ECHO_LIMIT]} is not this server's; MAPLE_ALLOWED_HOSTS lists further ones"
        ),
    ),
    OriginNotAllowed: Row(
        status=403,
        type=INVALID_REQUEST,
        code="origin_not_allowed",
        message=lambda error: (
            f"pages of {error.origin[:ECHO_LIMIT] or 'another site'} may not use this server;"
            " MAPLE_ALLOWED_ORIGINS lists those that may"
        ),
    ),
    InvalidKey: Row(
        status=401,
        type="authentication_error",
        code="invalid_api_key",
        message=_say("the API key is missing or wrong"),
        headers=lambda _: {"WWW-Authenticate": 'Bearer realm="maple"'},
        header_names=("WWW-Authenticate",),
    ),
    UnsupportedMediaType: Row(
        status=415, type=INVALID_REQUEST, code="unsupported_media_type", message=lambda error: error.reason
    ),
    PayloadTooLarge: Row(
        status=413,
        type=INVALID_REQUEST,
        code="payload_too_large",
        message=lambda error: f"the body is larger than {error.limit} bytes",
    ),
    BodyTimeout: Row(
        status=408,
        type=INVALID_REQUEST,
        code="request_timeout",
        message=lambda error: f"the body did not arrive within {error.seconds:g} seconds",
    ),
    BodyCorrupt: Row(
        status=400,
        type=INVALID_REQUEST,
        code="invalid_json",
        message=_say("the body cannot be inflated: its compression is broken"),
    ),
    TooManyBodies: Row(
        status=503,
        type=SERVER_ERROR,
        code="engine_overloaded",
        message=_say("too many large requests arrive at once"),
        headers=_retry,
        header_names=("Retry-After",),
    ),
    TooManyConnections: Row(
        status=503,
        type=SERVER_ERROR,
        code="engine_overloaded",
        message=_say("too many connections"),
        headers=lambda _: {"Retry-After": RETRY_SECONDS, "Connection": "close"},
    ),
    SessionUnknown: Row(
        status=404, type=INVALID_REQUEST, code="not_found", message=_say("there is no such session")
    ),
    SessionBusy: Row(
        status=503,
        type=SERVER_ERROR,
        code="engine_overloaded",
        message=_say("the saved session is in use, or its disk does not answer"),
        headers=_retry,
        header_names=("Retry-After",),
    ),
    SessionMismatch: Row(
        final=True,
        status=409,
        type=INVALID_REQUEST,
        code="format_mismatch",
        message=_say("the session was saved by another model or in another format"),
    ),
    SessionElsewhere: Row(
        status=409,
        type=INVALID_REQUEST,
        code="session_elsewhere",
        message=_say("the session was saved on a machine that does not answer, and no other can read it"),
    ),
    SessionTampered: Row(
        status=422,
        type=INVALID_REQUEST,
        code="tampered",
        message=_say("the saved session was changed or is damaged; nothing of it was loaded"),
    ),
    SessionsFull: Row(
        final=True,
        status=507,
        type=SERVER_ERROR,
        code="storage_full",
        message=_say("there is no room for the session; what was saved before is intact"),
    ),
    ResponseUnknown: Row(
        status=404, type=INVALID_REQUEST, code="not_found", message=_say("there is no such stored response")
    ),
    AnswerUnknown: Row(
        status=404,
        type=INVALID_REQUEST,
        code="not_found",
        message=_say("no such answer is being made"),
    ),
    NotThinking: Row(
        final=True,
        status=409,
        type=INVALID_REQUEST,
        code="not_thinking",
        message=_say("the answer is not thinking, or its parser does not tell how thinking ends"),
    ),
    StoreFull: Row(
        final=True,
        status=507,
        type=SERVER_ERROR,
        code="storage_full",
        message=_say("there is no room to store the response"),
    ),
    StoreBusy: Row(
        status=503,
        type=SERVER_ERROR,
        code="engine_overloaded",
        message=_say("the response store is locked or its disk does not answer"),
        headers=_retry,
        header_names=("Retry-After",),
    ),
    StoreBroken: Row(status=500, type=SERVER_ERROR, code=None, message=_say("the response store failed")),
    NotConfigured: Row(
        final=True,
        status=501,
        type=SERVER_ERROR,
        code="not_configured",
        message=lambda error: f"this route is off: {error.variable} is not set",
    ),
    NotSupported: Row(
        final=True, status=501, type=SERVER_ERROR, code="not_supported", message=lambda error: error.reason
    ),
    PromptTooLong: Row(
        status=400,
        type=INVALID_REQUEST,
        code="context_length_exceeded",
        message=lambda error: (
            f"the prompt has at least {error.got} tokens; {error.limit} are the most that fit"
        ),
    ),
    TemplateRefused: Row(
        status=400,
        type=INVALID_REQUEST,
        code=None,
        message=lambda error: f"the model's chat template refuses this conversation: {error.reason}",
    ),
    GrammarRefused: Row(
        status=400,
        type=INVALID_REQUEST,
        code=None,
        message=lambda error: f"{error.param} cannot be enforced: {error.reason}",
    ),
    TemplateFailed: Row(
        final=True,
        status=500,
        type=SERVER_ERROR,
        code=None,
        message=_say("the model's chat template failed on this conversation"),
    ),
    ModelLoading: Row(
        status=503,
        type=SERVER_ERROR,
        code="model_loading",
        message=_say("the model is still loading"),
        headers=lambda error: {"Retry-After": str(error.seconds_left or RETRY_SECONDS)},
        header_names=("Retry-After",),
    ),
    ModelFailed: Row(
        final=True,
        status=503,
        type=SERVER_ERROR,
        code="model_failed",
        message=_say("the model could not be loaded; the server's log and /health say why"),
    ),
    EngineOverloaded: Row(
        status=503,
        type=SERVER_ERROR,
        code="engine_overloaded",
        message=lambda error: _QUEUE[error.reason],
        headers=_retry,
        header_names=("Retry-After",),
    ),
    ShuttingDown: Row(
        status=503,
        type=SERVER_ERROR,
        code="shutting_down",
        message=_say("the server is shutting down"),
        headers=lambda _: {"Retry-After": RETRY_SECONDS, "Connection": "close"},
    ),
    ReplicaLost: Row(
        status=503,
        type=SERVER_ERROR,
        code="replica_lost",
        message=_say("the replica that generated this answer was lost"),
        headers=_retry,
        header_names=("Retry-After",),
    ),
    GenerationFailed: Row(status=500, type=SERVER_ERROR, code=None, message=_say("generation failed")),
    JobCancelled: Row(status=500, type=SERVER_ERROR, code=None, message=_say("the generation was cancelled")),
}
