"""Signatures under what this server has said, by a key that it keeps in its cache folder."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import pathlib
import secrets
from collections.abc import Callable

import structlog

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
    """The folder's key; a new one where there is none. Two servers that start at once agree: one file is made."""
    fresh, file = secrets.token_bytes(KEY_BYTES), folder / KEY_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"{KEY_FILE}.{os.getpid()}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(fresh)
        try:
            file.hardlink_to(draft)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
        return file.read_bytes()
    except OSError as error:
        log.warning("signing.key_not_kept", reason=error.strerror)
        return fresh
