"""API keys: one from a variable or several from a file, compared as bytes in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
import pathlib
import re
import stat
from collections.abc import Callable, Iterator, Mapping

import attrs
import structlog

from maple.errors import MapleError

log = structlog.get_logger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[^\s\x00-\x1f\x7f]{1,4096}")
_LARGEST_FILE = 1 << 20


@attrs.define(eq=False, str=False)
class KeysUnusable(MapleError):
    """The keys cannot be used. ``source`` is the variable or file, ``reason`` tells no key."""

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


@attrs.frozen
class _Entry:
    """A key by its digest, and the name of its owner."""

    digest: bytes
    owner: str


class Keyring:
    """The keys that open this server. Without any, everyone may enter and the one owner is ``""``."""

    def __init__(self, entries: tuple[_Entry, ...] = (), file: pathlib.Path | None = None) -> None:
        self._entries = entries
        self._file = file
        self._listeners: list[Callable[[], None]] = []

    @classmethod
    def open(cls, key: str | None, file: pathlib.Path | None) -> Keyring:
        """The keys that the settings name. Raises KeysUnusable: blank, both at once, or a bad file."""
        if key is not None and file is not None:
            raise KeysUnusable("MAPLE_API_KEY", "set this or MAPLE_API_KEY_FILE, not both")
        if file is not None:
            return cls(_read(file), file)
        if key is None:
            return cls()
        if not key.strip():
            raise KeysUnusable(
                "MAPLE_API_KEY", "a blank key would open the server; unset it to run without one"
            )
        return cls((_entry("default", key),))

    @property
    def required(self) -> bool:
        """Whether clients must send a key."""
        return bool(self._entries)

    def owner(self, offered: bytes) -> str | None:
        """The name of the key's owner, None for a wrong one. Takes equally long wherever a match is."""
        digest = _digest(offered)
        found: str | None = None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry.owner
        return found

    def identities(self) -> Mapping[str, bytes]:
        """A digest of each owner's first key, by the owner's name."""
        return {entry.owner: entry.digest for entry in reversed(self._entries)}

    def listen(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever the keys have been read anew."""
        self._listeners.append(changed)

    def reload(self) -> None:
        """Read the file again. A bad one is logged and the old keys stay; without a file nothing happens."""
        if self._file is None:
            return
        try:
            self._entries = _read(self._file)
        except KeysUnusable as error:
            log.error("keys.reload_failed", reason=error.reason)  # noqa: TRY400 -- the reason is all there is
        else:
            log.info("keys.reloaded", keys=len(self._entries))
            for changed in self._listeners:
                changed()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _entry(owner: str, key: str) -> _Entry:
    return _Entry(_digest(key.encode()), owner)


def _read(file: pathlib.Path) -> tuple[_Entry, ...]:
    entries = tuple(_parse(file.name, _text(file)))
    if not entries:
        raise KeysUnusable(file.name, "the key file holds no key")
    owners: dict[bytes, str] = {}
    for entry in entries:
        if owners.setdefault(entry.digest, entry.owner) != entry.owner:
            raise KeysUnusable(file.name, f"one key has two names, {owners[entry.digest]} and {entry.owner}")
    return entries


def _text(file: pathlib.Path) -> str:
    try:
        with file.open("rb") as stream:
            if os.fstat(stream.fileno()).st_mode & stat.S_IRWXO:
                raise KeysUnusable(file.name, "the key file can be read by other users; chmod it to 600")
            data = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise KeysUnusable(file.name, f"the key file cannot be read ({error.strerror})") from None
    if len(data) > _LARGEST_FILE:
        raise KeysUnusable(file.name, "the key file is larger than 1 MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KeysUnusable(file.name, "the key file is not UTF-8") from None


def _parse(file: str, text: str) -> Iterator[_Entry]:
    """``name:key`` or a key a line. A key without a name is owned by its fingerprint, wherever it stands."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        name, colon, key = words.partition(":")
        if not colon:
            name, key = f"key-{_digest(words.encode()).hex()[:12]}", words
        if not _NAME.fullmatch(name) or not _KEY.fullmatch(key):
            raise KeysUnusable(file, f"line {number} is neither `name:key` nor a key")
        yield _entry(name, key)
