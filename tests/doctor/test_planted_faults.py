"""``maple doctor`` on set-ups that are broken in one real way each, and on one that is broken in many."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import pathlib
import shutil
import socket
import sqlite3
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import maple_plugins
import maple_protocols
import pytest
from maple_testing.guard import HANG_GUARD

import maple
from maple.native.build import LIBRARY_NAME, CompilerMissing, compiler
from maple.native.library import KernelInfo, available

if TYPE_CHECKING:
    from tests.doctor.conftest import Doctor

DEMO = ("--demo", "--port", "0")


@pytest.fixture
def checkpoint(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder that loads, to be broken."""
    return shutil.copytree(golden_folder / "mlx-2bit", tmp_path / "checkpoint")


@pytest.fixture
def no_kernels(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder for PYTHONPATH with this very package, whose kernels were not built."""
    source = pathlib.Path(maple.__file__).parent
    target = tmp_path / "unbuilt"
    shutil.copytree(source, target / "maple", ignore=shutil.ignore_patterns(LIBRARY_NAME, "__pycache__"))
    return target


@pytest.fixture
def broken_torch(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder for PYTHONPATH with a torch whose native library is missing."""
    package = tmp_path / "half" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import ctypes\nctypes.CDLL('libtorch_is_not_here.so')\n")
    return package.parent


@pytest.fixture
def broken_parser(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder for PYTHONPATH with an installed distribution whose parser is not where it says."""
    info = tmp_path / "plugins" / "acme_parser-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-parser\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[maple.tool_parsers]\nacme = acme_parser_gone:AcmeTools\n")
    return info.parent


@pytest.fixture
def open_keys(tmp_path: pathlib.Path) -> pathlib.Path:
    """A key file that everyone can read."""
    file = tmp_path / "keys"
    file.write_text("alice:sesame-open\n")
    file.chmod(0o644)
    return file


@pytest.fixture
def foreign_database(tmp_path: pathlib.Path) -> pathlib.Path:
    """Another program's SQLite file."""
    file = tmp_path / "bookmarks.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE bookmarks (address TEXT)")
        database.commit()
    return file


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which something listens that is no Maple, and hangs up at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def closed_port() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def truncate(checkpoint: pathlib.Path) -> None:
    shard = checkpoint / "model.safetensors"
    os.truncate(shard, shard.stat().st_size - 1000)


def test_a_healthy_set_up_has_no_fault(doctor: Doctor) -> None:
    """Nothing is marked but what this machine lacks: a compiler, or kernels in a package without them."""
    lacking = set() if isinstance(available(), KernelInfo) else {"kernels", "engine"}
    with contextlib.suppress(CompilerMissing):
        compiler()
        lacking -= {"compiler"}
    told = doctor(*DEMO)
    assert told.code == 0
    assert told.marked("BAD") == set()
    assert told.marked("note") <= lacking | {"compiler"}
    assert told.one("settings")[0] == "ok"


def test_unbuilt_kernels(doctor: Doctor, no_kernels: pathlib.Path) -> None:
    """What is lost and how to build them; it works meanwhile."""
    told = doctor(*DEMO, PYTHONPATH=str(no_kernels))
    mark, text, advice = told.one("kernels")
    assert (mark, told.code) == ("note", 0)
    assert "not built" in text
    assert "python -m maple.native.build" in advice
    assert told.one("engine")[0] == "note"


def test_a_damaged_kernel_library(doctor: Doctor, no_kernels: pathlib.Path) -> None:
    """One that was cut off does not load, and is to be built again."""
    (no_kernels / "maple" / "native" / LIBRARY_NAME).write_bytes(b"\x7fELF cut off")
    mark, text, advice = doctor(*DEMO, PYTHONPATH=str(no_kernels)).one("kernels")
    assert mark == "note"
    assert "did not load" in text
    assert "python -m maple.native.build" in advice


def test_a_processor_without_vector_instructions(doctor: Doctor) -> None:
    """As in a virtual machine that hides them: what is lost, and the setting that shows them."""
    emulator = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if emulator is None or not isinstance(available(), KernelInfo):
        pytest.skip("needs qemu-user, to hide the processor's features, and built kernels")
    mark, text, advice = doctor(*DEMO, python=[emulator, "-cpu", "max,-avx2", sys.executable]).one("kernels")
    assert mark == "note"
    assert text.startswith("scalar: ")
    assert "-cpu host" in advice


def test_no_torch_where_it_is_needed(
    doctor: Doctor, no_kernels: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A Python in which all but torch is installed, and no kernels: nothing could serve."""
    site = tmp_path / "site"
    site.mkdir()
    installed = {pathlib.Path(sysconfig.get_paths()[name]) for name in ("purelib", "platlib")}
    for folder in installed:
        for entry in folder.iterdir():
            if not entry.name.startswith(("torch", "functorch")):
                (site / entry.name).symlink_to(entry)
    homes = {
        pathlib.Path(package.__file__ or "").parents[1] for package in (maple_plugins, maple_protocols, maple)
    }
    path = os.pathsep.join(map(str, (no_kernels, site, *(homes - installed))))
    told = doctor(*DEMO, python=[sys.executable, "-S"], PYTHONPATH=path)
    assert told.code == 1
    assert told.one("torch") == ("BAD", "torch not installed", "pip install torch")


def test_a_torch_that_does_not_load(doctor: Doctor, broken_torch: pathlib.Path) -> None:
    """It is tried where it will serve, and its own complaint is told."""
    told = doctor(*DEMO, "--dtype", "float32", PYTHONPATH=str(broken_torch))
    mark, text, advice = told.one("torch")
    assert (mark, told.code) == ("BAD", 1)
    assert "libtorch_is_not_here.so" in text
    assert advice == "pip install --force-reinstall torch"


def test_a_gpu_that_is_not_there(doctor: Doctor) -> None:
    """The setting asks for one, and the machine has no driver."""
    if pathlib.Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    told = doctor(*DEMO, "--device", "cuda")
    mark, text, advice = told.one("engine")
    assert (mark, told.code) == ("BAD", 1)
    assert "no NVIDIA driver" in text
    assert "MAPLE_DEVICE" in advice


def test_a_missing_checkpoint(doctor: Doctor, tmp_path: pathlib.Path) -> None:
    told = doctor("--port", "0", MAPLE_MODEL_PATH=str(tmp_path / "nowhere"))
    mark, text, advice = told.one("model")
    assert (mark, told.code) == ("BAD", 1)
    assert f"there is no folder {tmp_path / 'nowhere'}" in text
    assert "MAPLE_MODEL_PATH" in advice


def test_a_truncated_shard(doctor: Doctor, checkpoint: pathlib.Path) -> None:
    """The file is named."""
    truncate(checkpoint)
    told = doctor("--port", "0", MAPLE_MODEL_PATH=str(checkpoint))
    mark, text, advice = told.one("model")
    assert (mark, told.code) == ("BAD", 1)
    assert "model.safetensors is truncated" in text
    assert "fetch its files again" in advice


def test_another_models_config(doctor: Doctor, checkpoint: pathlib.Path) -> None:
    """What it is instead of a Maple."""
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (checkpoint / "config.json").write_text(json.dumps(config), "utf-8")
    mark, text, advice = doctor("--port", "0", MAPLE_MODEL_PATH=str(checkpoint)).one("model")
    assert mark == "BAD"
    assert "LlamaForCausalLM" in text
    assert advice


def test_a_missing_tokenizer(doctor: Doctor, checkpoint: pathlib.Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    mark, text, _ = doctor("--port", "0", MAPLE_MODEL_PATH=str(checkpoint)).one("model")
    assert mark == "BAD"
    assert "tokenizer.json" in text


def test_a_memory_limit_below_the_need(doctor: Doctor) -> None:
    """The limit of the shell counts, not the machine's memory."""
    told = doctor(*DEMO, python=["bash", "-c", f'ulimit -v 950000; exec "{sys.executable}" "$@"', "-"])
    mark, text, advice = told.one("memory")
    assert (mark, told.code) == ("BAD", 1)
    assert "may have 1.0 GB" in text
    assert "ulimit -v" in advice


def test_more_kv_cache_than_memory(doctor: Doctor) -> None:
    told = doctor(*DEMO, MAPLE_KV_CACHE_MB="99000000")
    mark, text, advice = told.one("memory")
    assert (mark, told.code) == ("BAD", 1)
    assert "MAPLE_KV_CACHE_MB" in text
    assert "unset it" in advice


def test_a_cache_folder_that_cannot_be_written(doctor: Doctor, tmp_path: pathlib.Path) -> None:
    """A file in its place, and a file system that takes no files, whoever asks."""
    (tmp_path / "file").write_text("")
    planted = [(str(tmp_path / "file"), "is a file")]
    if sys.platform == "linux":
        planted.append(("/proc/maple", "cannot be written"))
    for place, words in planted:
        mark, text, advice = doctor(*DEMO, MAPLE_CACHE_DIR=place).one("cache folder")
        assert mark == "note"
        assert words in text
        assert "MAPLE_CACHE_DIR" in advice


def test_another_programs_database(doctor: Doctor, foreign_database: pathlib.Path) -> None:
    """It is told, and not touched."""
    before = foreign_database.read_bytes()
    told = doctor(*DEMO, MAPLE_RESPONSE_STORE=f"sqlite:{foreign_database}")
    mark, text, advice = told.one("responses")
    assert (mark, told.code) == ("BAD", 1)
    assert "another program" in text
    assert "MAPLE_RESPONSE_STORE" in advice
    assert foreign_database.read_bytes() == before


def test_a_port_that_is_taken(doctor: Doctor, taken_port: int) -> None:
    told = doctor("--demo", "--port", str(taken_port))
    mark, text, advice = told.one("port")
    assert (mark, told.code) == ("BAD", 1)
    assert f"port {taken_port}: Address already in use" in text
    assert "--port 0" in advice


def test_a_maple_on_the_port_is_no_fault(doctor: Doctor, counting_server: int) -> None:
    """The doctor may be asked beside the server that it is about."""
    told = doctor("--demo", "--port", str(counting_server))
    mark, text, _ = told.one("port")
    assert (mark, told.code) == ("note", 0)
    assert "a Maple server listens" in text


def test_a_hub_that_cannot_be_reached(doctor: Doctor, closed_port: int) -> None:
    """The address that was tried, and the way without it."""
    told = doctor("--port", "0", HF_ENDPOINT=f"http://127.0.0.1:{closed_port}")
    mark, text, advice = told.one("hub")
    assert (mark, told.code) == ("BAD", 1)
    assert f"http://127.0.0.1:{closed_port} cannot be reached" in text
    assert "HTTPS_PROXY" in advice
    assert "MAPLE_MODEL_PATH" in advice


def test_a_hub_that_must_not_be_asked(doctor: Doctor) -> None:
    mark, text, advice = doctor("--port", "0", HF_HUB_OFFLINE="1").one("hub")
    assert mark == "BAD"
    assert "HF_HUB_OFFLINE" in text
    assert advice


class _Hub(http.server.BaseHTTPRequestHandler):
    """A hub whose model is larger than any disk, unless its name says otherwise."""

    def do_GET(self) -> None:
        size = 1000 if "small" in self.path else 10**18
        files = [{"rfilename": "model.safetensors", "size": size}, {"rfilename": "notes.txt", "size": 10**19}]
        body = json.dumps({"id": "acme/model", "siblings": files}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests have no log."""


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of an HTTP server that runs meanwhile."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_disk_too_small_for_the_download(doctor: Doctor) -> None:
    """What would be fetched is held against what is free; files that would not be do not count."""
    with serving(_Hub) as port:
        told = doctor("--port", "0", "--model-path", "acme/huge", HF_ENDPOINT=f"http://127.0.0.1:{port}")
    mark, text, advice = told.one("hub")
    assert (mark, told.code) == ("BAD", 1)
    assert "1000000000.0 GB to fetch" in text
    assert "HF_HOME" in advice


def test_a_hub_cache_that_cannot_be_written(doctor: Doctor, tmp_path: pathlib.Path) -> None:
    """Only where something is still to be fetched; a hub that is well is no fault."""
    (tmp_path / "file").write_text("")
    with serving(_Hub) as port:
        flags, endpoint = ("--port", "0", "--model-path", "acme/small"), f"http://127.0.0.1:{port}"
        told = doctor(*flags, HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path / "file"))
        well = doctor(*flags, HF_ENDPOINT=endpoint)
    mark, text, advice = told.one("hub")
    assert (mark, told.code) == ("BAD", 1)
    assert "is a file" in text
    assert "HF_HOME" in advice
    assert well.one("hub")[0] == "ok", well.one("hub")


def test_a_key_file_that_others_can_read(doctor: Doctor, open_keys: pathlib.Path) -> None:
    """The way out is a command, and no key is shown."""
    told = doctor(*DEMO, MAPLE_API_KEY_FILE=str(open_keys))
    mark, text, advice = told.one("keys")
    assert (mark, told.code) == ("BAD", 1)
    assert "other users" in text
    assert "chmod 600" in advice
    assert "sesame" not in text


def test_a_key_file_that_is_not_there(doctor: Doctor, tmp_path: pathlib.Path) -> None:
    mark, text, _ = doctor(*DEMO, MAPLE_API_KEY_FILE=str(tmp_path / "gone")).one("keys")
    assert mark == "BAD"
    assert "cannot be read (No such file or directory)" in text


def test_a_server_that_is_open_to_all(doctor: Doctor) -> None:
    mark, text, advice = doctor(*DEMO, "--host", "0.0.0.0").one("keys")
    assert mark == "note"
    assert "whoever reaches 0.0.0.0" in text
    assert "MAPLE_API_KEY" in advice


def test_a_plugin_that_does_not_import(doctor: Doctor, broken_parser: pathlib.Path) -> None:
    """Its own error is told, with a way out."""
    told = doctor(*DEMO, PYTHONPATH=str(broken_parser), MAPLE_TOOL_PARSER="acme")
    mark, text, advice = told.one("plugins")
    assert (mark, told.code) == ("BAD", 1)
    assert "acme_parser_gone:AcmeTools" in text
    assert "No module named 'acme_parser_gone'" in text
    assert "maple parsers" in advice


def test_wrong_variables(doctor: Doctor) -> None:
    """Each is told with what was meant, and the rest is looked at without them."""
    told = doctor(*DEMO, MAPLE_MAX_BACH="2", MAPLE_LOG_LEVEL="loud")
    texts = [text for _, text, _ in told.findings["settings"]]
    assert told.code == 1
    assert told.marked("BAD") == {"settings"}
    assert any("MAPLE_MAX_BACH is not a setting: did you mean MAPLE_MAX_BATCH?" in text for text in texts)
    assert any("MAPLE_LOG_LEVEL='loud' is not valid: use debug" in text for text in texts)


class _Buffering(http.server.BaseHTTPRequestHandler):
    """A proxy that reads a whole answer before it passes any of it on."""

    upstream = 0

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

    def _pass_on(self, body: bytes | None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=HANG_GUARD)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            whole = answer.read()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole)

    def log_message(self, *_: object) -> None:
        """Tests have no log."""


def test_a_proxy_that_buffers(doctor: Doctor, counting_server: int) -> None:
    """The server is well, its tokens come all at once."""
    handler = type("Handler", (_Buffering,), {"upstream": counting_server})
    with serving(handler) as port:
        told = doctor("--url", f"http://127.0.0.1:{port}", MAPLE_API_KEY="sesame")
    mark, text, advice = told.one("stream")
    assert (mark, told.code) == ("BAD", 1)
    assert told.one("server")[0] == "ok"
    assert text.startswith("a proxy buffers: ")
    assert "proxy_buffering off" in advice


NGINX = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_http_version 1.0;
            proxy_ignore_headers X-Accel-Buffering;
            proxy_buffering {buffering};
        }}
    }}
}}
"""


@contextlib.contextmanager
def nginx(folder: pathlib.Path, port: int, upstream: int, buffering: str) -> Iterator[None]:
    """A real one, whether or not it buffers; over HTTP/1.0, its default for long, it does so until 4 KiB are full."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("nginx is not installed")
    user = "user root;" if os.geteuid() == 0 else ""
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, port=port, upstream=upstream, buffering=buffering, user=user))
    with subprocess.Popen([program, "-c", str(file), "-e", str(folder / "start.log")]) as process:
        try:
            deadline = time.monotonic() + HANG_GUARD
            while True:
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", port), timeout=HANG_GUARD),
                ):
                    break
                assert process.poll() is None
                assert time.monotonic() < deadline
            yield
        finally:
            process.terminate()


@pytest.mark.parametrize(("buffering", "mark"), [("on", "BAD"), ("off", "ok")])
def test_nginx_is_told_apart_by_its_buffering(
    doctor: Doctor, counting_server: int, closed_port: int, tmp_path: pathlib.Path, buffering: str, mark: str
) -> None:
    """The same site with one word changed."""
    with nginx(tmp_path, closed_port, counting_server, buffering):
        told = doctor("--url", f"http://127.0.0.1:{closed_port}", MAPLE_API_KEY="sesame")
    assert told.one("stream")[0] == mark


def test_a_healthy_address(doctor: Doctor, counting_server: int) -> None:
    """The server itself, also by the address that clients of the SDK have."""
    told = doctor("--url", f"http://127.0.0.1:{counting_server}/v1", MAPLE_API_KEY="sesame")
    assert (told.code, told.marked("note", "BAD")) == (0, set())
    assert "one by one" in told.one("stream")[1]


def test_a_wrong_key_for_an_address(doctor: Doctor, counting_server: int) -> None:
    told = doctor("--url", f"127.0.0.1:{counting_server}", MAPLE_API_KEY="wrong")
    mark, text, advice = told.one("stream")
    assert (mark, told.code) == ("BAD", 1)
    assert "401" in text
    assert "MAPLE_API_KEY" in advice


def test_an_address_without_a_server(doctor: Doctor, closed_port: int) -> None:
    """Nothing there, and something else there."""
    mark, text, advice = doctor("--url", f"http://127.0.0.1:{closed_port}").one("server")
    assert mark == "BAD"
    assert "refused" in text
    assert advice
    with serving(_Hub) as port:
        told = doctor("--url", f"http://127.0.0.1:{port}")
    assert told.one("server")[:2] == ("BAD", "what answers there (200) is no Maple server")


def test_one_run_names_every_fault(
    doctor: Doctor,
    no_kernels: pathlib.Path,
    broken_torch: pathlib.Path,
    broken_parser: pathlib.Path,
    checkpoint: pathlib.Path,
    open_keys: pathlib.Path,
    foreign_database: pathlib.Path,
    taken_port: int,
    tmp_path: pathlib.Path,
) -> None:
    """Eleven faults at once: each is named, each has a way out, and none hides another."""
    truncate(checkpoint)
    (tmp_path / "file").write_text("")
    told = doctor(
        python=["bash", "-c", f'ulimit -v 950000; exec "{sys.executable}" "$@"', "-"],
        PYTHONPATH=os.pathsep.join(map(str, (no_kernels, broken_torch, broken_parser))),
        MAPLE_MAX_BACH="2",
        MAPLE_MODEL_PATH=str(checkpoint),
        MAPLE_CACHE_DIR=str(tmp_path / "file"),
        MAPLE_SESSION_DIR=str(tmp_path / "file"),
        MAPLE_RESPONSE_STORE=f"sqlite:{foreign_database}",
        MAPLE_TOOL_PARSER="acme",
        MAPLE_API_KEY_FILE=str(open_keys),
        MAPLE_PORT=str(taken_port),
    )
    planted = {
        "settings": "MAPLE_MAX_BACH",
        "kernels": "not built",
        "torch": "libtorch_is_not_here.so",
        "model": "model.safetensors is truncated",
        "memory": "may have 1.0 GB",
        "cache folder": "is a file",
        "sessions": "is a file",
        "responses": "another program",
        "plugins": "acme_parser_gone",
        "keys": "other users",
        "port": "already in use",
    }
    assert told.code == 1
    for title, words in planted.items():
        mark, text, advice = told.one(title)
        assert mark in ("BAD", "note"), title
        assert words in text
        assert advice
    assert told.marked("BAD", "note") - {"compiler"} == {*planted, "engine"}
