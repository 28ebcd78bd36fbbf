"""Saved sessions on disk: one folder a session, its keys and values in one file and a manifest that names it.

The manifest is put in place last, so a save is there as a whole or not at all. Functions here block; threads may
share a store.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import time
from collections.abc import Iterator

import attrs
import structlog

from maple.engine.errors import SessionMismatch, SessionsFull, SessionTampered, SessionUnknown
from maple.engine.kv.cache import KvSnapshot
from maple.engine.private_files import (
    locked_folder,
    opened_file,
    opened_folder,
    read_file,
    remove_file,
    write_file,
)
from maple.engine.session_format import check_about, deserialized, owner_folder, serialized, sum_of
from maple.engine.stats import SessionManifest
from maple.errors import MapleError

log = structlog.get_logger(__name__)

VERSION = 1
MANIFEST = "manifest.json"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DATA_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
_MANIFEST_BYTES = 4096
_HEADER_BYTES = 1 << 20


@attrs.define(eq=False, str=False)
class SessionsUnusable(MapleError):
    """No session can be saved there. ``reason`` is the operating system's."""

    folder: pathlib.Path
    reason: str

    def __str__(self) -> str:
        return f"MAPLE_SESSION_DIR: {self.folder} cannot be written to ({self.reason})"


class SessionFiles:
    """The saved sessions of all owners under one folder, at most ``max_bytes`` together."""

    def __init__(self, folder: pathlib.Path, *, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def exists(self, owner: str, session_id: str) -> bool:
        """Whether something is saved under that name; what cannot be reached is not."""
        with contextlib.suppress(OSError):
            return (self._folder / owner_folder(owner) / session_id / MANIFEST).is_file()
        return False

    def save(self, owner: str, session_id: str, snapshot: KvSnapshot, model: str) -> SessionManifest:
        """Replace what was saved before. Raises SessionsFull, and what was saved before is intact."""
        about = {
            "version": VERSION,
            "session_id": session_id,
            "model": model,
            "kv_format": snapshot.kv_format,
            "tokens": len(snapshot.ids),
            "created_at": int(time.time()),
        }
        parts = serialized(about, owner, snapshot)
        manifest = SessionManifest(
            **about,  # type: ignore[arg-type]  # the fields' types differ, their names do not
            bytes=sum(part.nbytes for part in parts),
            sha256=sum_of(parts),
        )
        try:
            with self._opened(owner, session_id, create=True) as folder:
                self._check_room(manifest.bytes, folder)
                write_file(folder, f"{manifest.sha256}.safetensors", *parts)
                write_file(folder, MANIFEST, _canonical(manifest))
                _remove_others(folder, f"{manifest.sha256}.safetensors")
        except OSError as error:
            if error.errno in NO_ROOM:
                raise SessionsFull(f"the disk is full: {error.strerror}") from error
            raise
        return manifest

    def manifest(self, owner: str, session_id: str) -> SessionManifest:
        """The last save's. Raises SessionUnknown or SessionTampered."""
        with self._opened(owner, session_id) as folder:
            manifest = _read_manifest(folder, session_id)
            check_about(_read_about(folder, manifest), manifest, owner)
            return manifest

    def manifests(self) -> Iterator[tuple[str, SessionManifest]]:
        """The last save of every session, with its owner's folder; those that are damaged are left out."""
        for path in sorted(self._folder.glob(f"*/*/{MANIFEST}")):
            owner, session_id = path.parts[-3:-1]
            with (
                contextlib.suppress(SessionUnknown, SessionTampered, OSError),
                opened_folder(self._folder, (owner, session_id)) as folder,
            ):
                yield owner, _read_manifest(folder, session_id)

    def load(
        self, owner: str, session_id: str, *, model: str, kv_format: str
    ) -> tuple[SessionManifest, KvSnapshot]:
        """Raises SessionUnknown, SessionTampered, or SessionMismatch before the keys and values are read."""
        with self._opened(owner, session_id) as folder:
            manifest = _read_manifest(folder, session_id)
            check_about(_read_about(folder, manifest), manifest, owner)
            if manifest.version != VERSION:
                raise SessionMismatch(f"saved in version {manifest.version}, this is {VERSION}")
            if (manifest.model, manifest.kv_format) != (model, kv_format):
                raise SessionMismatch(f"saved by {manifest.model} as {manifest.kv_format}")
            data = _read_data(folder, manifest)
        return manifest, deserialized(data, manifest, owner)

    def delete(self, owner: str, session_id: str) -> bool:
        """Whether there was one."""
        try:
            with self._opened(owner, session_id) as folder:
                existed = MANIFEST in os.listdir(folder)  # noqa: PTH208 -- a descriptor, not a path
                remove_file(folder, MANIFEST)  # first: without it there is no session
                os.fsync(folder)
                _remove_others(folder, "")
        except SessionUnknown:
            return False
        return existed

    def check(self) -> None:
        """Whether sessions can be saved at all: makes the folder, writes into it. Raises SessionsUnusable."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with opened_folder(self._folder, ()) as folder:
                write_file(folder, ".writable", b"")
                remove_file(folder, ".writable")
        except OSError as error:
            raise SessionsUnusable(self._folder, error.strerror or type(error).__name__) from None

    def wait_until_free(self, owner: str, session_id: str) -> None:
        """Return when nobody else holds the session's folder. Raises SessionBusy."""
        with contextlib.suppress(SessionUnknown), self._opened(owner, session_id):
            return

    def _opened(
        self, owner: str, session_id: str, *, create: bool = False
    ) -> contextlib.AbstractContextManager[int]:
        """A descriptor of a session's folder, locked. Raises SessionUnknown or SessionBusy."""
        if create:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return locked_folder(self._folder, (owner_folder(owner), session_id), create=create)

    def _check_room(self, size: int, replaced: int) -> None:
        """The files of all sessions but the one that is replaced, and ``size`` bytes more, must be allowed."""
        used = 0
        for entry in self._folder.glob("*/*/*.safetensors"):
            with contextlib.suppress(FileNotFoundError):  # that session was deleted or saved anew
                used += entry.stat().st_size
        for name in os.listdir(replaced):
            if _DATA_NAME.fullmatch(name):
                used -= os.stat(name, dir_fd=replaced, follow_symlinks=False).st_size
        if used + size > self._max_bytes:
            raise SessionsFull(f"{size} bytes beside {used} are more than MAPLE_SESSION_MAX_MB")


def model_identity(folder: pathlib.Path) -> str:
    """A name for the weights in a checkpoint's folder: a hash of its config, and of samples of its tensors."""
    digest = hashlib.sha256()
    for path in sorted((*folder.glob("config.json"), *folder.glob("*.safetensors"))):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for part in range(_SAMPLES):
                file.seek(part * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return f"maple-{digest.hexdigest()[:32]}"


_SAMPLES, _SAMPLE_BYTES = 33, 1 << 16


def _read_about(folder: int, manifest: SessionManifest) -> object:
    """What the data file says of itself, without the keys and values. Raises SessionTampered."""
    try:
        with opened_file(folder, f"{manifest.sha256}.safetensors") as file:
            size = int.from_bytes(file.read(8), "little")
            start, end = json.loads(file.read(min(size, _HEADER_BYTES)))["about"]["data_offsets"]
            file.seek(8 + size + start)
            about = json.loads(file.read(min(end - start, _HEADER_BYTES)))
            length = os.fstat(file.fileno()).st_size
    except (OSError, LookupError, ValueError, TypeError, RecursionError) as error:
        raise SessionTampered(f"not a session's file: {type(error).__name__}") from error
    if length != manifest.bytes:
        raise SessionTampered("the file was changed")
    return about


def _canonical(manifest: SessionManifest) -> bytes:
    return json.dumps(attrs.asdict(manifest), indent=1).encode() + b"\n"


def _read_manifest(folder: int, session_id: str) -> SessionManifest:
    try:
        content = read_file(folder, MANIFEST, _MANIFEST_BYTES)
    except FileNotFoundError:
        raise SessionUnknown from None
    try:
        fields = json.loads(content)
        manifest = SessionManifest(**fields)
        sound = _canonical(manifest) == content and manifest.session_id == session_id and _is_typed(manifest)
    except (ValueError, TypeError, RecursionError) as error:
        raise SessionTampered("the manifest is no manifest") from error
    if not sound or not _DATA_NAME.fullmatch(f"{manifest.sha256}.safetensors"):
        raise SessionTampered("the manifest was changed")
    return manifest


def _is_typed(manifest: SessionManifest) -> bool:
    """Whether each field has its type: JSON may hold any."""
    values = attrs.asdict(manifest)
    counts = {"version", "tokens", "bytes", "created_at"}
    return all(type(value) is (int if name in counts else str) for name, value in values.items())


def _read_data(folder: int, manifest: SessionManifest) -> bytes:
    try:
        data = read_file(folder, f"{manifest.sha256}.safetensors", manifest.bytes)
    except FileNotFoundError as error:
        raise SessionTampered("the file that the manifest names is missing") from error
    if len(data) != manifest.bytes or hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise SessionTampered("the file was changed")
    return data


def _remove_others(folder: int, name: str) -> None:
    """Remove earlier saves, and what a save that was killed left behind."""
    for other in os.listdir(folder):
        if other not in (MANIFEST, name):
            remove_file(folder, other)
