"""One row of the table of errors, and the refusal that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from maple_protocols.errors import ErrorBody

RETRY_SECONDS = "5"


@attrs.frozen(kw_only=True)
class Refusal:
    """An error as it goes out."""

    status: int
    body: ErrorBody
    headers: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Row:
    """One line of the contract's error table. ``message`` and ``headers`` are made from the exception."""

    status: int
    type: str
    code: str | None
    message: Callable[[Any], str]
    headers: Callable[[Any], Mapping[str, str]] = lambda _: {}
    final: bool = False
    """Whether no retry can help: SDKs repeat what looks like the server's fault unless they are told."""
    header_names: tuple[str, ...] = ()
    """Those of ``headers`` that tell a client something, for the API's description."""
