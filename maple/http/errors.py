"""The answer to an error that was raised on purpose: the table's row, or a protocol's own refusal."""

from __future__ import annotations

from maple_protocols.errors import ErrorBody, RequestError

from maple.engine.errors import PromptTooLong
from maple.http.error_table import SERVER_ERROR, TABLE
from maple.http.refused import ResponseUnknown
from maple.http.rows import Refusal
from maple.prompt.grammar import GrammarRefused
from maple.prompt.template import TemplateRefused

NO_RETRY = {"x-should-retry": "false"}
RETRIED = frozenset({408, 409, 429, *range(500, 600)})
"""Statuses at which the SDKs try again. What a protocol refuses stays refused."""
UNEXPECTED = Refusal(status=500, body=ErrorBody(message="internal error", type=SERVER_ERROR))
"""What an exception that is in no table becomes; its traceback is in the log and nowhere else."""


def refusal(error: BaseException, *, prompt_param: str | None = None) -> Refusal | None:
    """The answer to an error that was raised on purpose; None for any other.

    ``prompt_param`` is the field that a prompt which is too long, or which the template refuses, is blamed on.
    """
    if isinstance(error, RequestError):
        final = NO_RETRY if error.status in RETRIED else {}
        return Refusal(status=error.status, body=error.body, headers=final)
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if row is None:
        return None
    body = ErrorBody(
        message=row.message(error), type=row.type, param=_blamed(error, prompt_param), code=row.code
    )
    final = NO_RETRY if row.final else {}
    return Refusal(status=row.status, body=body, headers={**row.headers(error), **final})


def _blamed(error: BaseException, prompt_param: str | None) -> str | None:
    if isinstance(error, PromptTooLong | TemplateRefused):
        return prompt_param
    if isinstance(error, GrammarRefused):
        return error.param
    return error.param if isinstance(error, ResponseUnknown) else None
