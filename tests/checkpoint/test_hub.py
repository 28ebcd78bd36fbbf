"""Checkpoints of the hub: found, fetched, and refused in one line."""

from __future__ import annotations

import hashlib
import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from huggingface_hub import constants
from maple_testing.engine import never
from maple_testing.guard import HANG_GUARD
from maple_testing.wire import environment_without
from structlog.testing import capture_logs

from maple.checkpoint.errors import LoadCancelled, LoadError
from maple.checkpoint.hub import FLOAT_CHECKPOINT, TWO_BIT_CHECKPOINT
from maple.checkpoint.locate import locate
from maple.torch_model.load import LoadOptions, load

COMMIT = "c" * 40
OTHER_COMMIT = "d" * 40


@attrs.define
class FakeHub:
    """A hub of local folders over HTTP, as far as the real client asks of it."""

    url: str = ""
    models: dict[str, pathlib.Path] = attrs.field(factory=dict)
    commits: dict[str, str] = attrs.field(factory=lambda: {"main": COMMIT, "v2": OTHER_COMMIT})
    fetched: list[str] = attrs.field(factory=list)
    refusal: tuple[int, str] | None = None

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body for a request."""
        path = path.partition("?")[0]
        if self.refusal is not None:
            status, code = self.refusal
            return status, {"X-Error-Code": code}, b"{}"
        parts = path.removeprefix("/api/models").strip("/").split("/")
        model = "/".join(parts[:2])
        if model not in self.models:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if path.startswith("/api/models"):
            return self._describe(model, parts[2], parts[3])
        return self._file(method, self.models[model] / parts[4], parts[3])

    def _describe(self, model: str, kind: str, revision: str) -> tuple[int, dict[str, str], bytes]:
        commit = self.commits.get(revision, revision)
        if commit not in self.commits.values():
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        body: Any = {"id": model, "sha": commit, "siblings": []}
        if kind == "tree":
            body = [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": etag_of(path)}
                for path in sorted(self.models[model].iterdir())
            ]
        return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()

    def _file(self, method: str, path: pathlib.Path, commit: str) -> tuple[int, dict[str, str], bytes]:
        body = path.read_bytes()
        if method == "GET":
            self.fetched.append(path.name)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag_of(path)}"', "Content-Length": str(len(body))}
        return 200, headers, b"" if method == "HEAD" else body


def etag_of(path: pathlib.Path) -> str:
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A fake hub on a free port."""
    fake = FakeHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = fake.answer(self.command, self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the name is the base class's

        def log_message(self, *args: object) -> None:
            return None

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def hub_cache(hub: FakeHub, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The client's settings point at the fake hub and an empty cache, as its variables would make them."""
    template = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def published(hub: FakeHub, golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> str:
    """The golden 2-bit model under an id of its own, with files beside it that nobody should fetch."""
    folder = tmp_path / "published"
    shutil.copytree(golden_folder / "mlx-2bit", folder)
    for name in ("model-flashhead.safetensors", "pytorch_model.bin", "modeling_maple.py", "README.md"):
        (folder / name).write_bytes(b"not wanted")
    hub.models["acme/maple-tiny"] = folder
    return "acme/maple-tiny"


def test_a_folder_is_itself(golden_folder: pathlib.Path) -> None:
    """What is a folder here is never looked for on the hub."""
    assert locate(str(golden_folder), "main", never) == golden_folder


@pytest.mark.parametrize("source", ["./missing", "/no/such/folder", "a/b/c", "~/missing", "name"])
def test_what_cannot_be_an_id_is_a_missing_folder(source: str) -> None:
    """Paths and single names are not ids, so no request is made."""
    with pytest.raises(LoadError, match="does not exist"):
        locate(source, "main", never)


def test_an_id_is_fetched_once_and_only_what_is_needed(
    hub: FakeHub, hub_cache: pathlib.Path, published: str
) -> None:
    """Weights, config and tokenizer come, and once; code, pickles, the approximate head and prose do not."""
    told: list[tuple[str, int, int]] = []
    with capture_logs() as logs:
        folder = locate(published, "main", never, lambda *now: told.append(now))
    assert told[-1][0] == "download"
    assert told[-1][1] > 0
    assert folder.parent.name == "snapshots"
    assert folder.name == COMMIT
    wanted = [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert sorted(path.name for path in folder.iterdir()) == wanted
    assert sorted(hub.fetched) == wanted
    (download,) = [entry for entry in logs if entry["event"] == "hub.download"]
    assert download["bytes"] == sum((folder / name).stat().st_size for name in wanted)
    assert download["free"] > 0
    with capture_logs() as logs:
        assert locate(published, "main", never) == folder
    assert sorted(hub.fetched) == wanted
    assert logs == []


def test_a_revision_is_a_snapshot_of_its_own(hub: FakeHub, hub_cache: pathlib.Path, published: str) -> None:
    """A branch, a tag or a commit: the snapshot is the commit's."""
    assert locate(published, "v2", never).name == OTHER_COMMIT
    assert locate(published, COMMIT, never).name == COMMIT


def test_the_large_checkpoint_is_announced_with_the_smaller_one(
    hub: FakeHub, hub_cache: pathlib.Path, published: str
) -> None:
    """Whoever asks for the 40 GB model is told of the one of 5 GB."""
    hub.models[FLOAT_CHECKPOINT] = hub.models[published]
    with capture_logs() as logs:
        locate(FLOAT_CHECKPOINT, "main", never)
    (large,) = [entry for entry in logs if entry["event"] == "hub.large"]
    assert large["smaller"] == TWO_BIT_CHECKPOINT


def test_a_download_that_cannot_fit_is_not_begun(
    hub: FakeHub, hub_cache: pathlib.Path, published: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sizes are in the line, and nothing was fetched."""
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(LoadError, match=r"needs 0\.0 GB of disk, and 0\.0 GB are free"):
        locate(published, "main", never)
    assert hub.fetched == []


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        ((404, "RepoNotFound"), "acme/maple-tiny is neither a folder here nor a model on the hub"),
        ((401, "RepoNotFound"), "acme/maple-tiny is neither a folder here nor a model on the hub"),
        ((404, "RevisionNotFound"), "acme/maple-tiny has no revision main"),
        ((403, "GatedRepo"), "acme/maple-tiny is gated: accept its terms on the hub and set HF_TOKEN"),
        ((418, "Teapot"), "acme/maple-tiny is not in the hub cache, and the hub cannot be reached"),
    ],
)
def test_a_refusal_of_the_hub_is_one_line(
    refusal: tuple[int, str], expected: str, hub: FakeHub, hub_cache: pathlib.Path, published: str
) -> None:
    """What the hub says is put into words, without its address."""
    hub.refusal = refusal
    with pytest.raises(LoadError) as caught:
        locate(published, "main", never)
    assert str(caught.value) == expected


def test_a_cancel_is_noticed_within_a_download(hub: FakeHub, hub_cache: pathlib.Path, published: str) -> None:
    """A download ends with LoadCancelled at its next report."""
    with pytest.raises(LoadCancelled):
        locate(published, "main", lambda: bool(hub.fetched))
    assert hub.fetched


def test_an_id_that_the_client_refuses(hub_cache: pathlib.Path) -> None:
    """The client's own rules for names are passed on as one line."""
    with pytest.raises(LoadError, match="acme/a--b could not be fetched from the hub: HFValidationError"):
        locate("acme/a--b", "main", never)


SCRIPT = """
import json, sys
from maple.checkpoint.errors import LoadError
from maple.checkpoint.locate import locate
try:
    print(json.dumps(str(locate(sys.argv[1], "main", lambda: False))))
except LoadError as error:
    print(json.dumps({"error": str(error)}))
"""


def locate_elsewhere(source: str, **variables: str) -> Any:
    """Locate in a process with these variables and no others of the hub's; a folder, or an error."""
    root = pathlib.Path(__file__).parents[2]
    kept = environment_without("HF_")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, source],
        env=kept | {"PYTHONPATH": str(root)} | variables,
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_variables_of_the_hub_are_honoured(hub: FakeHub, published: str, tmp_path: pathlib.Path) -> None:
    """HF_ENDPOINT and HF_HOME lead to the fake hub; what it gave serves offline, as long as it is whole."""
    home = str(tmp_path / "home")
    folder = locate_elsewhere(published, HF_ENDPOINT=hub.url, HF_HOME=home)
    assert folder.startswith(home)
    fetched = list(hub.fetched)
    assert locate_elsewhere(published, HF_HOME=home, HF_HUB_OFFLINE="1") == folder
    assert hub.fetched == fetched
    assert load(LoadOptions(source=folder), progress=lambda _: None).packed_tensors == 28
    (pathlib.Path(folder) / "tokenizer.json").unlink()
    assert locate_elsewhere(published, HF_HOME=home, HF_HUB_OFFLINE="1") == {
        "error": f"{published} is only partly in the hub cache, and the hub cannot be reached"
    }
    empty = str(tmp_path / "other")
    assert locate_elsewhere(published, HF_HOME=empty, HF_HUB_OFFLINE="1") == {
        "error": f"{published} is not in the hub cache, and the hub cannot be reached"
    }
