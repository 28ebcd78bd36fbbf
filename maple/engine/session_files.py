"""Saved sessions on disk: one folder a session, its keys and values in one file and a manifest that names it.

The manifest is put in place last, so a save is there as a whole or not at all. Everything is opened relative to
folders that were opened before, and no link is followed. Functions here block; threads may share a store.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import re
import stat
import time
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import safetensors
import safetensors.numpy
import structlog

from maple.engine.api import (
    SessionManifest,
    SessionMismatch,
    SessionsFull,
    SessionTampered,
    SessionUnknown,
)
from maple.engine.kv.cache import KvSnapshot

__all__ = ["SessionFiles", "model_identity"]

log = structlog.get_logger(__name__)

VERSION = 1
MANIFEST = "manifest.json"
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DATA_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
_MANIFEST_BYTES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SessionFiles:
    """The saved sessions of all owners under one folder, at most ``max_bytes`` together."""

    def __init__(self, folder: pathlib.Path, *, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def exists(self, owner: str, session_id: str) -> bool:
        """Whether something is saved under that name."""
        return (self._folder / _owner_folder(owner) / session_id / MANIFEST).is_file()

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
        data = _serialized(about, owner, snapshot)
        manifest = SessionManifest(
            **about,  # type: ignore[arg-type]  # the fields' types differ, their names do not
            bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        try:
            with self._opened(owner, session_id, create=True) as folder:
                self._check_room(len(data), folder)
                _write(folder, f"{manifest.sha256}.safetensors", data)
                _write(folder, MANIFEST, _canonical(manifest))
                _remove_others(folder, f"{manifest.sha256}.safetensors")
        except OSError as error:
            if error.errno in NO_ROOM:
                raise SessionsFull(f"the disk is full: {error.strerror}") from error
            raise
        return manifest

    def manifest(self, owner: str, session_id: str) -> SessionManifest:
        """The last save's. Raises SessionUnknown or SessionTampered."""
        with self._opened(owner, session_id) as folder:
            return _read_manifest(folder, session_id)

    def load(
        self, owner: str, session_id: str, *, model: str, kv_format: str
    ) -> tuple[SessionManifest, KvSnapshot]:
        """Raises SessionUnknown, SessionTampered or SessionMismatch."""
        with self._opened(owner, session_id) as folder:
            manifest = _read_manifest(folder, session_id)
            data = _read_data(folder, manifest)
        snapshot = _deserialized(data, manifest, owner)
        if (manifest.model, manifest.kv_format) != (model, kv_format):
            raise SessionMismatch(f"saved by {manifest.model} as {manifest.kv_format}")
        return manifest, snapshot

    def delete(self, owner: str, session_id: str) -> bool:
        """Whether there was one."""
        try:
            with self._opened(owner, session_id) as folder:
                existed = MANIFEST in os.listdir(folder)  # noqa: PTH208 -- a descriptor, not a path
                _unlink(folder, MANIFEST)  # first: without it there is no session
                _remove_others(folder, "")
        except SessionUnknown:
            return False
        with contextlib.suppress(OSError):
            (self._folder / _owner_folder(owner) / session_id).rmdir()
        return existed

    @contextlib.contextmanager
    def _opened(self, owner: str, session_id: str, *, create: bool = False) -> Iterator[int]:
        """A descriptor of a session's folder, locked against other saves. Raises SessionUnknown."""
        with contextlib.ExitStack() as stack:
            try:
                if create:
                    self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, folder)
                for name in (_owner_folder(owner), session_id):
                    if create:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, 0o700, dir_fd=folder)
                    folder = os.open(name, _FOLDER, dir_fd=folder)
                    stack.callback(os.close, folder)
            except (FileNotFoundError, NotADirectoryError):
                raise SessionUnknown from None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise SessionUnknown from None
                raise
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder

    def _check_room(self, size: int, replaced: int) -> None:
        """The files of all sessions but the one that is replaced, and ``size`` bytes more, must be allowed."""
        used = sum(entry.stat().st_size for entry in self._folder.glob("*/*/*.safetensors"))
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


def _owner_folder(owner: str) -> str:
    """Owners' names may hold anything; folders' names are their hashes."""
    return hashlib.sha256(owner.encode()).hexdigest()[:32]


def _serialized(about: dict[str, Any], owner: str, snapshot: KvSnapshot) -> bytes:
    content = json.dumps({**about, "owner": _owner_folder(owner)}, sort_keys=True).encode()
    tensors: dict[str, Any] = {
        "about": np.frombuffer(content, np.uint8),
        "ids": np.array(snapshot.ids, np.int32),
        **{f"kv.{name}": array for name, array in snapshot.arrays.items()},
    }
    return safetensors.numpy.save(tensors)


def _deserialized(data: bytes, manifest: SessionManifest, owner: str) -> KvSnapshot:
    """The snapshot in a file; everything that the manifest says must be in there, too."""
    try:
        tensors = safetensors.numpy.load(data)
        about = json.loads(tensors.pop("about").tobytes())
        ids = [int(token) for token in tensors.pop("ids")]
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise SessionTampered(f"not a session's file: {type(error).__name__}") from error
    told = attrs.asdict(manifest)
    expected = {**{name: told[name] for name in told if name not in ("bytes", "sha256")}}
    if about != {**expected, "owner": _owner_folder(owner)} or len(ids) != manifest.tokens or not ids:
        raise SessionTampered("manifest and file differ")
    arrays = {name.removeprefix("kv."): array for name, array in tensors.items()}
    return KvSnapshot(ids=ids, kv_format=manifest.kv_format, arrays=arrays)


def _canonical(manifest: SessionManifest) -> bytes:
    return json.dumps(attrs.asdict(manifest), indent=1).encode() + b"\n"


def _read_manifest(folder: int, session_id: str) -> SessionManifest:
    try:
        content = _read(folder, MANIFEST, _MANIFEST_BYTES)
    except FileNotFoundError:
        raise SessionUnknown from None
    try:
        fields = json.loads(content)
        manifest = SessionManifest(**fields)
        sound = _canonical(manifest) == content and manifest.session_id == session_id
    except (ValueError, TypeError) as error:
        raise SessionTampered("the manifest is no manifest") from error
    if not sound or not _DATA_NAME.fullmatch(f"{manifest.sha256}.safetensors"):
        raise SessionTampered("the manifest was changed")
    return manifest


def _read_data(folder: int, manifest: SessionManifest) -> bytes:
    try:
        data = _read(folder, f"{manifest.sha256}.safetensors", manifest.bytes)
    except FileNotFoundError as error:
        raise SessionTampered("the file that the manifest names is missing") from error
    if len(data) != manifest.bytes or hashlib.sha256(data).hexdigest() != manifest.sha256:
        raise SessionTampered("the file was changed")
    return data


def _read(folder: int, name: str, most: int) -> bytes:
    """A plain file's content, at most one byte more than ``most``."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SessionTampered(f"{name} is a link") from error
        raise
    with open(descriptor, "rb") as file:  # noqa: PTH123 -- a descriptor, not a path
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SessionTampered(f"{name} is not a file")
        return file.read(most + 1)


def _write(folder: int, name: str, data: bytes) -> None:
    """Put a file in place, whole and on the disk, or leave what was there."""
    temporary = f".{os.urandom(8).hex()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 -- a descriptor, not a path
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _unlink(folder, temporary)
        raise
    os.fsync(folder)


def _remove_others(folder: int, name: str) -> None:
    """Remove earlier saves, and what a save that was killed left behind."""
    for other in os.listdir(folder):
        if other not in (MANIFEST, name):
            _unlink(folder, other)


def _unlink(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
