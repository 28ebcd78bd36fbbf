"""The systemd unit: content to systemd's own checks, and the server works under its restrictions."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest
from maple_testing.guard import HANG_GUARD

import maple

if TYPE_CHECKING:
    from tests.deploy.conftest import Launcher, Replica

WORST = 15
"""systemd's exposure level, times ten, that the unit must stay under."""
ADDRESS_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
NEW_NAMESPACES = 0x7E020080
"""All CLONE_NEW* flags of clone(2)."""
USER = 61184
"""One of the numbers that DynamicUser= draws from."""
PROBE = """
import ctypes, json, os, pathlib, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(action):
    try:
        return action() not in (-1, None)
    except OSError:
        return False
def write(place):
    return pathlib.Path(place, "probe").write_text("x")
allowed, forbidden = json.loads(sys.argv[1])
actions = {
    "write into the cache": lambda: write("/var/cache/maple"),
    "write into the state": lambda: write("/var/lib/maple"),
    "write into a private /tmp": lambda: write("/tmp"),
    "read the keys": lambda: os.stat("/run/credentials/maple.service/keys").st_size,
    "open a socket": lambda: socket.socket(socket.AF_INET).fileno(),
    "write into /etc": lambda: write("/etc"),
    "write into /usr": lambda: write("/usr"),
    "write beside the package": lambda: write(sys.prefix),
    "reach the real home": lambda: os.stat("/root").st_dev == os.stat("/etc").st_dev or None,
    "see another's process": lambda: os.stat(f"/proc/{forbidden}"),
    "see another's temporary file": lambda: os.stat(allowed),
    "open a packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).fileno(),
    "open a netlink socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).fileno(),
    "make a namespace": lambda: libc.unshare(0x10000000),
    "enter a namespace": lambda: libc.setns(os.open("/proc/self/ns/net", os.O_RDONLY), 0),
    "mount": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None),
    "trace a process": lambda: libc.ptrace(0, 0, 0, 0),
    "change the root": lambda: os.chroot("/tmp"),
    "change the user": lambda: os.setuid(1),
    "set the clock": lambda: libc.clock_settime(0, (ctypes.c_long * 2)(1, 1)),
    "name the host": lambda: socket.sethostname("other"),
    "raise its priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
    "open a disk": lambda: os.mknod("/tmp/disk", 0o60600, 0x0801),
    "load a module": lambda: libc.syscall(313, 0, b"", 0),
    "read the kernel's log": lambda: libc.klogctl(3, ctypes.create_string_buffer(64), 64),
}
done = [name for name, action in actions.items() if attempt(action)]
limits = {"umask": os.umask(0), "files": __import__("resource").getrlimit(7)[0], "uid": os.getuid()}
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
status = dict(line.split(":\\t") for line in lines if ":\\t" in line)
print(json.dumps({"done": done, **limits, "caps": status["CapBnd"], "no_new": status["NoNewPrivs"]}))
"""


Unit = Mapping[str, Sequence[str]]


@pytest.fixture(scope="module")
def unit(deploy_folder: pathlib.Path) -> Unit:
    """The unit's directives; one that stands twice has both values."""
    found = collections.defaultdict(list)
    for line in (deploy_folder / "maple.service").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    environment = {**os.environ, "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_systemd_is_content_with_the_unit(deploy_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """No error and no warning; only the program's place is another one than where the unit expects it."""
    text = (deploy_folder / "maple.service").read_text()
    copy = tmp_path / "maple.service"
    with_keys = re.sub(r"(?m)^#(LoadCredential|Environment=MAPLE_API)", r"\1", text)
    copy.write_text(with_keys.replace("/opt/maple/bin/maple", "/bin/true"))
    done = systemd_analyze("verify", "--man=no", str(copy))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_gives_up_on_a_wrong_setting_and_watches(unit: Unit) -> None:
    """Exit code 2 is a setting: starting again for ever helps nobody. READY and the watchdog come from the server."""
    assert unit["RestartPreventExitStatus"] == ["2"]
    assert unit["Type"] == ["notify"]
    assert int(unit["WatchdogSec"][0]) >= 10


def test_systemds_exposure_level_is_low(
    deploy_folder: pathlib.Path, record_property: Callable[[str, object], None]
) -> None:
    """By systemd's own score, from 0 (shut) to 10 (open)."""
    unit = str(deploy_folder / "maple.service")
    done = systemd_analyze("security", "--offline=true", f"--threshold={WORST}", "--no-pager", unit)
    score = re.search(r"exposure level for maple.service: ([\d.]+)", done.stdout)
    assert score, done.stdout + done.stderr
    record_property("exposure", score[1])
    assert done.returncode == 0, score[0]


def system_calls(names: Sequence[str]) -> set[str]:
    """The calls of systemd's sets, which may hold further sets."""
    calls: set[str] = set()
    for name in names:
        if not name.startswith("@"):
            calls.add(name)
            continue
        words = [line.strip() for line in systemd_analyze("syscall-filter", name).stdout.splitlines()[1:]]
        calls |= system_calls([word for word in words if word and not word.startswith("#")])
    return calls


def seccomp_program(unit: Unit, file: pathlib.Path) -> pathlib.Path:
    """The unit's own filter of system calls, address families and namespaces, compiled."""
    seccomp = pytest.importorskip("pyseccomp", reason="pyseccomp, or libseccomp below it, is not installed")
    allowed, denied = unit["SystemCallFilter"]
    calls = system_calls(["@default", *allowed.split()]) - system_calls(denied.removeprefix("~").split())
    program = seccomp.SyscallFilter(seccomp.ERRNO(1))
    for call in calls - {"socket", "clone", "clone3", "unshare", "setns"}:
        with contextlib.suppress(ValueError, OSError):  # a call of another processor
            program.add_rule(seccomp.ALLOW, call)
    for family in unit["RestrictAddressFamilies"][0].split():
        program.add_rule(seccomp.ALLOW, "socket", seccomp.Arg(0, seccomp.EQ, ADDRESS_FAMILIES[family]))
    assert unit["RestrictNamespaces"] == ["yes"]
    program.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, NEW_NAMESPACES, 0))
    program.add_rule(seccomp.ERRNO(38), "clone3")
    with file.open("wb") as compiled:
        program.export_bpf(compiled)
    return file


CONFINED = {
    "ProtectSystem": ("strict", ["--ro-bind", "/", "/"]),
    "ProtectHome": ("yes", ["--tmpfs", "/home", "--tmpfs", "/root"]),
    "PrivateTmp": ("yes", ["--tmpfs", "/tmp", "--tmpfs", "/var/tmp"]),  # noqa: S108 -- inside the sandbox
    "PrivateDevices": ("yes", ["--dev", "/dev"]),
    "PrivateUsers": ("yes", ["--unshare-user"]),
    "DynamicUser": ("yes", ["--uid", str(USER), "--gid", str(USER)]),
    "ProtectProc": ("invisible", ["--unshare-pid", "--proc", "/proc"]),
    "ProtectHostname": ("yes", ["--unshare-uts"]),
    "RemoveIPC": ("yes", ["--unshare-ipc"]),
    "ProtectControlGroups": ("yes", ["--unshare-cgroup-try"]),
    "CapabilityBoundingSet": ("", ["--cap-drop", "ALL"]),
    "NoNewPrivileges": ("yes", []),  # bubblewrap always does
}
"""Directives, the value that is meant, and what does the same without systemd."""


def places(folder: pathlib.Path) -> list[str]:
    """Where the unit keeps things, and the package's own place, which /opt/maple stands for."""
    keys = folder / "keys"
    keys.write_text("alice:sesame\n")
    keys.chmod(0o400)
    package = pathlib.Path(maple.__file__).parents[1]
    tests = pathlib.Path(__file__).parents[2]  # for the model that comes with them
    code = {sys.prefix, sys.base_prefix, str(package), str(tests), sysconfig.get_path("purelib")}
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    binds = [word for path in sorted({*code, *paths}) for word in ("--ro-bind", path, path)]
    for place in ("cache", "lib"):
        (folder / place).mkdir()
        binds += ["--tmpfs", f"/var/{place}", "--bind", str(folder / place), f"/var/{place}/maple"]
    return [*binds, "--tmpfs", "/run", "--ro-bind", str(keys), "/run/credentials/maple.service/keys"]


@pytest.fixture
def sandbox(unit: Unit, tmp_path: pathlib.Path) -> list[str]:
    """A command that runs another under the unit's restrictions, read from the unit."""
    if shutil.which("bwrap") is None or shutil.which("prlimit") is None:
        pytest.skip("bubblewrap or prlimit is not installed")
    plain = ["bwrap", "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc", "true"]
    tried = subprocess.run(plain, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"this machine allows no sandbox: {tried.stderr.strip()[-200:]}")
    words = []
    for directive, (value, flags) in CONFINED.items():
        assert unit[directive] == [value], directive
        words += flags
    program = seccomp_program(unit, tmp_path / "filter.bpf")
    shell = f'umask {unit["UMask"][0]}; exec prlimit --nofile={unit["LimitNOFILE"][0]} "$@" 9<"{program}"'
    return ["sh", "-c", shell, "sh", "bwrap", "--seccomp", "9", *words, *places(tmp_path)]


def test_the_sandbox_confines(sandbox: list[str], tmp_path: pathlib.Path) -> None:
    """What the server needs is possible, and nothing of what it does not need."""
    other = tmp_path / "other"
    other.write_text("of someone else")
    command = [*sandbox, sys.executable, "-I", "-c", PROBE, json.dumps([str(other), os.getpid()])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("done") == [
        "write into the cache",
        "write into the state",
        "write into a private /tmp",
        "read the keys",
        "open a socket",
    ]
    assert found == {"umask": 0o77, "files": 4096, "uid": USER, "caps": "0" * 16, "no_new": "1"}


def test_a_model_runs_in_the_sandbox(
    sandbox: list[str], launch: Launcher, golden_folder: pathlib.Path, unit: Unit
) -> None:
    """The real engine: it starts, packs into its cache, answers, rereads its keys, drains and ends well."""
    pytest.importorskip("torch", reason="torch is not installed")
    server: Replica = launch(
        wrapper=sandbox,
        flags=("--model-path", str(golden_folder / "mlx-2bit")),
        MAPLE_CACHE_DIR="/var/cache/maple",
        MAPLE_SESSION_DIR="/var/lib/maple",
        MAPLE_API_KEY_FILE="/run/credentials/maple.service/keys",
        MAPLE_TORCH_THREADS="1",
        HF_HUB_OFFLINE="1",
        HOME="/nonexistent",
    )
    body = server.chat_body("hi", max_tokens=4)
    assert server.request("POST", "/v1/chat/completions", body).status == 401
    answer = server.request("POST", "/v1/chat/completions", body, Authorization="Bearer sesame")
    assert (answer.status, answer.json["usage"]["completion_tokens"]) == (200, 4)
    inner = server.process.pid
    while children := _children(inner):
        inner = children[0]
    os.kill(inner, signal.SIGHUP)
    server.wait_for("keys.reloaded")
    os.kill(inner, signal.Signals[unit["KillSignal"][0]])
    assert server.process.wait(timeout=HANG_GUARD) == 0
    assert "Traceback" not in server.log.read_text()


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
