"""Signatures under what this server has said, by a key that it keeps in its cache folder."""

from __future__ import annotations

import base64
import hashlib
import hmac
import pathlib
import secrets
from collections.abc import Callable

import structlog

from maple.engine.private_files import kept_secret

log = structlog.get_logger(__name__)

KEY_FILE = "signing.key"
KEY_BYTES = 32


def signer(folder: pathlib.Path | None) -> Callable[[str], str]:
    """Text → base64 of its HMAC-SHA256. Without a folder that can be written, the key lasts as long as the process."""
    key = _kept_key(folder) if folder is not None else secrets.token_bytes(KEY_BYTES)

    def sign(text: str) -> str:
        digest = hmac.digest(key, text.encode(errors="surrogatepass"), hashlib.sha256)
        return base64.b64encode(digest).decode()

    return sign


def _kept_key(folder: pathlib.Path) -> bytes:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return kept_secret(folder, KEY_FILE)
    except OSError as error:
        log.warning("signing.key_not_kept", reason=error.strerror)
        return secrets.token_bytes(KEY_BYTES)
