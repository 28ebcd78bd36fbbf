"""Saved sessions on disk: whole or not at all, and never trusted."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import random
import re
import resource
import shutil
import stat
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable

import attrs
import numpy as np
import pytest

import maple
from maple.engine.errors import SessionBusy, SessionMismatch, SessionsFull, SessionTampered, SessionUnknown
from maple.engine.kv.cache import KvSnapshot
from maple.engine.private_files import opened_folder
from maple.engine.session_files import VERSION, SessionFiles, SessionsUnusable, model_identity

MODEL, FORMAT = "maple-0", "test/1"


def snapshot(seed: int = 0, tokens: int = 70, kv_format: str = FORMAT) -> KvSnapshot:
    generator = np.random.default_rng(seed)
    arrays = {"full": generator.integers(0, 256, (2, 900), np.uint8), "at": np.arange(2, dtype=np.int32)}
    ids = [int(token) for token in generator.integers(0, 500, tokens)]
    return KvSnapshot(ids=ids, kv_format=kv_format, arrays=arrays)


@pytest.fixture
def files(tmp_path: pathlib.Path) -> SessionFiles:
    return SessionFiles(tmp_path / "sessions", max_bytes=1 << 20)


def read(files: SessionFiles, session_id: str = "s", owner: str = "me") -> KvSnapshot:
    return files.load(owner, session_id, model=MODEL, kv_format=FORMAT)[1]


def assert_same(found: KvSnapshot, saved: KvSnapshot) -> None:
    assert found.ids == saved.ids
    assert set(found.arrays) == set(saved.arrays)
    for name, array in saved.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)


def saved_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_is_saved_is_loaded(files: SessionFiles) -> None:
    """Ids and arrays come back, and the manifest tells of the file."""
    manifest = files.save("me", "s", snapshot(), MODEL)
    assert (manifest.version, manifest.session_id, manifest.tokens) == (1, "s", 70)
    assert (manifest.model, manifest.kv_format) == (MODEL, FORMAT)
    assert files.manifest("me", "s") == manifest
    assert_same(read(files), snapshot())


def test_files_are_private_and_nothing_else_is_left(files: SessionFiles, tmp_path: pathlib.Path) -> None:
    """Two files of mode 0600 a session, however often it was saved, also after a save that was killed."""
    files.save("me", "s", snapshot(1), MODEL)
    stray = saved_files(tmp_path)[0].parent / ".0123.new"
    stray.write_bytes(b"half")
    manifest = files.save("me", "s", snapshot(2), MODEL)
    found = saved_files(tmp_path)
    assert [path.name for path in found] == sorted([f"{manifest.sha256}.safetensors", "manifest.json"])
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in found)
    assert found[0].stat().st_size == manifest.bytes


def test_owners_do_not_see_each_other(files: SessionFiles) -> None:
    """Another key's session is not there: not its manifest, not for loading, not for deleting."""
    files.save("me", "s", snapshot(), MODEL)
    for call in (lambda: files.manifest("you", "s"), lambda: read(files, owner="you")):
        with pytest.raises(SessionUnknown):
            call()
    assert not files.delete("you", "s")
    assert files.delete("me", "s")
    assert not files.delete("me", "s")
    assert not files.exists("me", "s")


@pytest.mark.parametrize(("model", "kv_format"), [("maple-1", FORMAT), (MODEL, "test/2")])
def test_another_model_or_format_is_told_apart(files: SessionFiles, model: str, kv_format: str) -> None:
    """A sound session of another model is no damage."""
    files.save("me", "s", snapshot(), MODEL)
    with pytest.raises(SessionMismatch):
        files.load("me", "s", model=model, kv_format=kv_format)


def test_a_file_of_an_older_version_is_refused_and_saved_anew(
    files: SessionFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no damage: a line says which version it has, and the next save takes its place."""
    with monkeypatch.context() as older:
        older.setattr("maple.engine.session_files.VERSION", VERSION - 1)
        files.save("me", "s", snapshot(), MODEL)
    with pytest.raises(SessionMismatch, match=f"^saved in version {VERSION - 1}, this is {VERSION}$"):
        read(files)
    assert files.manifest("me", "s").version == VERSION - 1
    files.save("me", "s", snapshot(), MODEL)
    assert_same(read(files), snapshot())


def test_another_format_is_told_before_keys_and_values_are_read(
    files: SessionFiles, tmp_path: pathlib.Path
) -> None:
    """They may be gigabytes: damage in them is not even seen."""
    files.save("me", "s", snapshot(), MODEL)
    (data,) = (path for path in saved_files(tmp_path) if path.suffix == ".safetensors")
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    with pytest.raises(SessionMismatch):
        files.load("me", "s", model=MODEL, kv_format="test/2")
    with pytest.raises(SessionTampered):
        read(files)


def test_five_hundred_flipped_bits_of_every_file_are_noticed(
    files: SessionFiles, tmp_path: pathlib.Path
) -> None:
    """One bit anywhere, in the manifest too, and nothing is loaded."""
    files.save("me", "s", snapshot(), MODEL)
    chance = random.Random(5)  # noqa: S311 - the same flips every time
    for path in saved_files(tmp_path):
        content = path.read_bytes()
        for _ in range(500):
            changed = bytearray(content)
            changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(SessionTampered):
                read(files)
        path.write_bytes(content)
    assert_same(read(files), snapshot())


@pytest.mark.parametrize("change", ["cut", "longer", "missing", "swapped", "another session's"])
def test_other_damage_is_noticed(files: SessionFiles, tmp_path: pathlib.Path, change: str) -> None:
    """Files that are cut, padded, missing, or another session's are none."""
    files.save("me", "s", snapshot(), MODEL)
    data, manifest = saved_files(tmp_path)
    if change == "cut":
        data.write_bytes(data.read_bytes()[:-1])
    elif change == "longer":
        data.write_bytes(data.read_bytes() + b"\0")
    elif change == "missing":
        data.unlink()
    elif change == "swapped":
        content = data.read_bytes()
        data.write_bytes(manifest.read_bytes())
        manifest.write_bytes(content)
    else:
        files.save("me", "t", snapshot(), MODEL)
        data.parent.rename(data.parent.with_name("u"))
        data.parent.with_name("t").rename(data.parent)
    with pytest.raises(SessionTampered):
        read(files)


def test_no_link_is_followed(files: SessionFiles, tmp_path: pathlib.Path) -> None:
    """Neither a file nor a folder may be a link: not for reading, and not for writing."""
    files.save("me", "s", snapshot(), MODEL)
    data, manifest = saved_files(tmp_path)
    for path in (data, manifest):
        moved = tmp_path / "elsewhere"
        path.rename(moved)
        path.symlink_to(moved)
        with pytest.raises(SessionTampered):
            read(files)
        path.unlink()
        moved.rename(path)
    outside = tmp_path / "outside"
    outside.mkdir()
    data.parent.with_name("linked").symlink_to(outside)
    with pytest.raises(SessionUnknown):
        files.save("me", "linked", snapshot(), MODEL)
    assert list(outside.iterdir()) == []


def test_the_limit_counts_all_sessions_but_the_replaced(tmp_path: pathlib.Path) -> None:
    """A session may be replaced where a second one has no room; a refusal leaves all as it was."""
    size = SessionFiles(tmp_path / "a", max_bytes=1 << 20).save("me", "s", snapshot(), MODEL).bytes
    files = SessionFiles(tmp_path / "b", max_bytes=2 * size - 1)
    files.save("me", "s", snapshot(1), MODEL)
    files.save("me", "s", snapshot(2), MODEL)
    with pytest.raises(SessionsFull):
        files.save("me", "t", snapshot(3), MODEL)
    assert not files.exists("me", "t")
    assert_same(read(files), snapshot(2))


def test_a_full_disk_leaves_the_old_save(files: SessionFiles, tmp_path: pathlib.Path) -> None:
    """A process that may write no large file fails as on a full disk; what was saved before is whole."""
    files.save("me", "s", snapshot(1), MODEL)
    before = {path: path.read_bytes() for path in saved_files(tmp_path)}
    code = f"""
import resource, signal, sys
from maple.engine.errors import SessionsFull
from maple.engine.session_files import SessionFiles
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from test_session_files import MODEL, snapshot
import pathlib
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    SessionFiles(pathlib.Path({str(tmp_path / "sessions")!r}), max_bytes=1 << 20).save("me", "s", snapshot(2), MODEL)
except SessionsFull:
    sys.exit(7)
"""
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert {path: path.read_bytes() for path in saved_files(tmp_path)} == before
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_saves_at_once_leave_one_whole_session(files: SessionFiles, tmp_path: pathlib.Path) -> None:
    """Whoever is last, the session is one of those that were saved."""
    saved = [snapshot(seed) for seed in range(8)]
    threads = [
        threading.Thread(target=files.save, args=("me", "s", one, MODEL)) for one in saved for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(files)
    assert_same(found, next(one for one in saved if one.ids == found.ids))
    assert len(saved_files(tmp_path)) == 2


def test_manifests_are_plain_json(files: SessionFiles, tmp_path: pathlib.Path) -> None:
    """Anything can read one, and it holds no key's name."""
    files.save("secret-owner", "s", snapshot(), MODEL)
    fields = json.loads(saved_files(tmp_path)[1].read_text())
    assert set(fields) == {
        "version", "session_id", "model", "kv_format", "tokens", "bytes", "sha256", "created_at",
    }  # fmt: skip
    assert not any(b"secret-owner" in path.read_bytes() for path in saved_files(tmp_path))
    assert not any("secret-owner" in name for _, names, _ in os.walk(tmp_path) for name in names)


def test_a_model_is_known_by_its_weights(tmp_path: pathlib.Path) -> None:
    """The same files are the same model wherever they lie; another byte makes another."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights" * 1000)
    first, second = (model_identity(tmp_path / name) for name in ("one", "two"))
    assert first == second
    (tmp_path / "two" / "model.safetensors").write_bytes(b"weights" * 999 + b"weightz")
    assert model_identity(tmp_path / "two") != first


def set_manifest(folder: pathlib.Path, content: bytes) -> None:
    next(folder.rglob("manifest.json")).write_bytes(content)


@pytest.mark.parametrize(
    "forged",
    [
        b"[" * 4000,
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"7" * 4000,
        {"tokens": "70"},
        {"tokens": True},
        {"tokens": 70.0},
        {"tokens": 69},
        {"tokens": -1},
        {"tokens": None},
        {"version": "1"},
        {"bytes": "many"},
        {"bytes": 1},
        {"created_at": 0},
        {"created_at": "now"},
        {"model": "another"},
        {"model": 7},
        {"kv_format": "another"},
        {"session_id": "t"},
        {"sha256": "0" * 64},
        {"sha256": 7},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_manifest_that_is_not_what_was_saved_is_tampered(
    files: SessionFiles, tmp_path: pathlib.Path, forged: bytes | dict[str, object]
) -> None:
    """Whatever it holds, and well-made or not: neither shown nor loaded."""
    manifest = attrs.asdict(files.save("me", "s", snapshot(), MODEL))
    if isinstance(forged, dict):
        forged = json.dumps({**manifest, **forged}, indent=1).encode() + b"\n"
    set_manifest(tmp_path, forged)
    for call in (lambda: files.manifest("me", "s"), lambda: read(files)):
        with pytest.raises(SessionTampered):
            call()


def test_a_data_file_that_is_none_makes_the_manifest_a_lie(
    files: SessionFiles, tmp_path: pathlib.Path
) -> None:
    """Cut at every hundredth byte, emptied, or with a header that never ends."""
    manifest = files.save("me", "s", snapshot(), MODEL)
    path = next(tmp_path.rglob("*.safetensors"))
    data = path.read_bytes()
    for broken in (*(data[:end] for end in range(0, len(data), 100)), b"\xff" * len(data), b"[" * len(data)):
        path.write_bytes(broken)
        with pytest.raises(SessionTampered):
            files.manifest("me", "s")
    path.write_bytes(data)
    assert files.manifest("me", "s") == manifest


def test_saves_beside_deletes_succeed(files: SessionFiles) -> None:
    """Of one session, 200 of each at once: every save is whole, and nothing but what is expected is raised."""
    failures: list[BaseException] = []

    def repeat(work: Callable[[], object]) -> None:
        try:
            for _ in range(200):
                work()
        except BaseException as error:
            failures.append(error)

    works = [lambda: files.save("me", "s", snapshot(1, tokens=4), MODEL), lambda: files.delete("me", "s")]
    threads = [threading.Thread(target=repeat, args=(work,)) for work in works * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    files.save("me", "s", snapshot(2), MODEL)
    assert_same(read(files), snapshot(2))


def test_a_failed_save_and_a_delete_leave_no_folder(tmp_path: pathlib.Path) -> None:
    """An empty one would be there for ever."""
    files = SessionFiles(tmp_path, max_bytes=10)
    with pytest.raises(SessionsFull):
        files.save("me", "s", snapshot(), MODEL)
    assert [path for path in tmp_path.rglob("*") if path.name == "s"] == []
    files = SessionFiles(tmp_path, max_bytes=1 << 20)
    files.save("me", "s", snapshot(), MODEL)
    assert files.delete("me", "s")
    assert [path for path in tmp_path.rglob("*") if path.name == "s"] == []


@pytest.mark.parametrize("kind", ["a file", "a link to nowhere", "below a file", "read-only"])
def test_a_folder_that_cannot_hold_sessions_stops_the_start(tmp_path: pathlib.Path, kind: str) -> None:
    """One line that names the setting, and not a 500 at the first save."""
    folder = tmp_path / "sessions"
    if kind == "a file":
        folder.touch()
    elif kind == "a link to nowhere":
        folder.symlink_to(tmp_path / "nowhere")
    elif kind == "below a file":
        folder.touch()
        folder = folder / "below"
    else:
        folder = pathlib.Path("/proc/self/sessions")  # a file system on which nobody may write
    with pytest.raises(SessionsUnusable, match="MAPLE_SESSION_DIR") as caught:
        SessionFiles(folder, max_bytes=1).check()
    assert "\n" not in str(caught.value)


def test_a_folder_that_can_is_made_and_left_empty(tmp_path: pathlib.Path) -> None:
    """With its parents, for its owner alone."""
    SessionFiles(tmp_path / "a" / "b", max_bytes=1).check()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_lock_that_somebody_keeps_is_waited_for_so_long(
    files: SessionFiles, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped second server, say: that session is busy for every call, others are not."""
    monkeypatch.setattr("maple.engine.private_files.LOCK_SECONDS", 0.05)
    files.save("me", "s", snapshot(), MODEL)
    with opened_folder(next(tmp_path.rglob("s")), ()) as folder:
        fcntl.flock(folder, fcntl.LOCK_EX)
        for call in (
            lambda: files.manifest("me", "s"),
            lambda: read(files),
            lambda: files.save("me", "s", snapshot(), MODEL),
            lambda: files.delete("me", "s"),
            lambda: files.wait_until_free("me", "s"),
        ):
            with pytest.raises(SessionBusy):
                call()
        files.save("me", "t", snapshot(), MODEL)
        assert_same(read(files, "t"), snapshot())
    assert_same(read(files), snapshot())


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_save_is_on_the_disk_before_it_is_acknowledged(tmp_path: pathlib.Path) -> None:
    """Power may fail at any time: each file is synced before it gets its name, each folder after it has a new entry."""
    program = (
        "import pathlib, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "import numpy\n"
        "from maple.engine.kv.cache import KvSnapshot\n"
        "from maple.engine.session_files import SessionFiles\n"
        "arrays = {'full': numpy.zeros((2, 900), numpy.uint8)}\n"
        "kept = KvSnapshot(ids=[1, 2], kv_format='test/1', arrays=arrays)\n"
        "SessionFiles(pathlib.Path(sys.argv[1]), max_bytes=1 << 20).save('me', 's', kept, 'maple-0')\n"
    )
    trace = tmp_path / "trace"
    calls = "openat,mkdirat,write,fsync,rename,renameat,renameat2,unlinkat"
    root = tmp_path / "sessions"
    root.mkdir()
    command = ["strace", "-f", "-y", "-e", f"trace={calls}", "-o", str(trace), sys.executable, "-c", program]
    subprocess.run([*command, str(root), str(pathlib.Path(maple.__file__).parents[1])], check=True)
    steps = [_step(line) for line in trace.read_text().splitlines() if str(root) in line]
    owner = next(path for path in root.iterdir()).name
    assert [step for step in steps if step] == [
        ("mkdirat", "sessions"),
        ("fsync", "sessions"),
        ("mkdirat", owner),
        ("fsync", owner),
        *([("write", ".new"), ("fsync", ".new"), ("rename", "s"), ("fsync", "s")] * 2),
    ]


def _step(line: str) -> tuple[str, str] | None:
    """A traced call's name, and the last part of the path of the descriptor that it was for."""
    found = re.search(r"(\w+)\(\d+<([^>]*)>", line)
    if found is None or found[1] == "openat":
        return None
    name = found[2].rpartition("/")[2]
    return ("rename" if found[1].startswith("rename") else found[1]), (
        ".new" if name.endswith(".new") else name
    )


def test_another_sessions_file_may_vanish_while_room_is_counted(
    files: SessionFiles, tmp_path: pathlib.Path
) -> None:
    """A session that is deleted or saved anew beside a save is no failure of that save."""
    files.save("me", "other", snapshot(), MODEL)
    (data,) = (tmp_path / "sessions").glob("*/other/*.safetensors")
    data.with_name("gone.safetensors").symlink_to("nowhere")
    files.save("me", "s", snapshot(), MODEL)
    assert_same(read(files), snapshot())


def test_a_save_and_a_load_take_little_memory_of_their_own(tmp_path: pathlib.Path) -> None:
    """Keys and values may be most of what there is: a save copies none of them, a load has them once."""
    files = SessionFiles(tmp_path, max_bytes=1 << 30)
    arrays = {"full": np.zeros((8, 1 << 20), np.uint8)}
    large = KvSnapshot(ids=[1, 2, 3], kv_format="test/1", arrays=arrays)
    spent = []
    tracemalloc.start()
    for work in (lambda: files.save("me", "s", large, MODEL), lambda: read(files)):
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        work()
        spent.append(tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()
    assert spent[0] < large.nbytes // 4
    assert spent[1] < large.nbytes * 5 // 4
