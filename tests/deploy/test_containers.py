"""Container, compose and Kubernetes files: linted, parsed, and in step with the server that they start."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from maple.settings import Settings

CONTAINERFILES = ("Containerfile", "Containerfile.cuda")
ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = {f"MAPLE_{field.name.upper()}" for field in Settings.__attrs_attrs__}  # type: ignore[attr-defined]  # attrs adds it


def instructions(file: pathlib.Path) -> list[tuple[str, str]]:
    """(word, arguments) of each instruction, continuations joined."""
    text = re.sub(r"\\\n\s*", "", file.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("name", CONTAINERFILES)
def test_the_linter_is_content(deploy_folder: pathlib.Path, name: str) -> None:
    """hadolint, with its default rules: no error, warning or remark."""
    beside = pathlib.Path(sys.executable).parent
    program = shutil.which("hadolint", path=f"{beside}:/usr/local/bin:/usr/bin")
    if program is None:
        pytest.skip("hadolint is not installed")
    command = [program, "--no-color", str(deploy_folder / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", CONTAINERFILES)
def test_images_run_as_a_user_and_end_by_draining(deploy_folder: pathlib.Path, name: str) -> None:
    """Not root, by number so that Kubernetes can check it; the signal is the one that drains."""
    given = dict(instructions(deploy_folder / name))
    assert int(given["USER"]) > 0
    assert given["STOPSIGNAL"] == "SIGTERM"
    assert (given["ENTRYPOINT"], given["CMD"]) == ('["maple"]', '["serve"]')
    assert "/healthz" in given["HEALTHCHECK"]


@pytest.mark.parametrize("name", CONTAINERFILES)
def test_what_images_copy_is_there(deploy_folder: pathlib.Path, name: str) -> None:
    """Every file that the build takes, and no more than it needs: no tests, no history, no keys."""
    copies = [shlex.split(rest) for word, rest in instructions(deploy_folder / name) if word == "COPY"]
    sources = [source for words in copies if not words[0].startswith("--") for source in words[:-1]]
    assert {"pyproject.toml", "setup.py", "maple", "plugins", "protocols"} <= set(sources)
    assert all((ROOT / source).exists() for source in sources)
    assert "." not in sources


def _environments(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
    """(file, variable) wherever a file sets one of ours."""
    for file in (*CONTAINERFILES, "compose.yaml", "kubernetes.yaml", "maple.service"):
        for name in re.findall(r"\bMAPLE_[A-Z_]+\b", (folder / file).read_text()):
            yield file, name


def test_all_variables_exist(deploy_folder: pathlib.Path) -> None:
    """A misspelt one would keep the server from starting."""
    named = set(_environments(deploy_folder))
    assert named
    assert {(file, name) for file, name in named if name not in SETTINGS and name != "MAPLE_PORT"} == set()


@pytest.fixture(scope="module")
def compose(deploy_folder: pathlib.Path) -> Any:
    return yaml.safe_load((deploy_folder / "compose.yaml").read_text())


def test_compose_describes_one_confined_service(compose: Any, deploy_folder: pathlib.Path) -> None:
    """Read-only, without capabilities, on loopback, with time to drain; all that it names is declared."""
    [service] = compose["services"].values()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert int(service["stop_grace_period"].rstrip("s")) > Settings().drain_timeout
    context = deploy_folder / service["build"]["context"]
    assert (context / service["build"]["dockerfile"]).is_file()
    assert {volume.split(":")[0] for volume in service["volumes"]} <= set(compose["volumes"])
    assert set(service["secrets"]) <= set(compose["secrets"])


def test_compose_asks_of_a_secrets_file_only_what_compose_can_do(compose: Any) -> None:
    """Docker's reference: uid, gid and mode of a secret are not implemented where its source is a file, which is
    mounted as it is. A service that names them would run as if they held.
    """
    files = {name for name, secret in compose["secrets"].items() if "file" in secret}
    for service in compose["services"].values():
        for secret in service.get("secrets", ()):
            name, asked = (secret, set()) if isinstance(secret, str) else (secret["source"], set(secret))
            assert name not in files or not asked & {"uid", "gid", "mode"}, name


class _Healthy(http.server.BaseHTTPRequestHandler):
    """A server that answers 200 to anything."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()


class _Failing(_Healthy):
    """One that does not."""

    status = 503


@pytest.mark.parametrize("name", CONTAINERFILES)
def test_the_health_check_asks_the_server_and_no_proxy(deploy_folder: pathlib.Path, name: str) -> None:
    """As it stands in the file, on the port that the server was given, with a proxy in the environment that is none."""
    [rest] = [rest for word, rest in instructions(deploy_folder / name) if word == "HEALTHCHECK"]
    _, _, code = json.loads(rest[rest.index("[") :])

    def ask(port: int) -> int:
        environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "MAPLE_PORT": str(port)}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).returncode

    for handler, expected in ((_Healthy, 0), (_Failing, 1)):
        with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.handle_request)
            thread.start()
            assert ask(server.server_port) == expected
            thread.join()
    assert ask(9) != 0


def test_compose_itself_accepts_the_file(deploy_folder: pathlib.Path) -> None:
    """Where the client is installed."""
    client = ["docker", "compose"]
    if shutil.which("docker") is None or subprocess.run([*client, "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    command = [*client, "-f", str(deploy_folder / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def objects(deploy_folder: pathlib.Path) -> dict[str, Any]:
    """The Kubernetes file's objects by kind."""
    documents = yaml.safe_load_all((deploy_folder / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in documents}


@pytest.fixture(scope="module")
def pod(objects: dict[str, Any]) -> Any:
    return objects["StatefulSet"]["spec"]["template"]["spec"]


def test_kubernetes_objects_fit_together(objects: dict[str, Any], pod: Any) -> None:
    """Selectors, ports, volumes and the service's name lead to something."""
    stateful, service = objects["StatefulSet"]["spec"], objects["Service"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert stateful["serviceName"] == service["metadata"]["name"]
    [container] = pod["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    claims = {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in pod["volumes"]} | claims
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_kubernetes_would_accept_the_objects(objects: dict[str, Any]) -> None:
    """By its own schemas, with no field that they do not know."""
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for described in objects.values():
        validator.validate(described, "1.31", strict=True)


def test_kubernetes_probes_ask_what_each_is_for(pod: Any) -> None:
    """Ready while it may take requests, alive while its process answers: no long load or drain kills it."""
    [container] = pod["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert paths == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600


def test_kubernetes_pods_are_confined_and_drain(pod: Any) -> None:
    """No root, writable root, capabilities, token or service links; the grace outlives the drain."""
    [container] = pod["containers"]
    confined = container["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert confined["readOnlyRootFilesystem"] is True
    assert confined["allowPrivilegeEscalation"] is False
    assert confined["capabilities"] == {"drop": ["ALL"]}
    assert (pod["enableServiceLinks"], pod["automountServiceAccountToken"]) == (False, False)
    assert pod["terminationGracePeriodSeconds"] > Settings().drain_timeout


def test_the_same_user_in_image_compose_and_pod(deploy_folder: pathlib.Path, compose: Any, pod: Any) -> None:
    """Who may read the keys and write the volume."""
    users = {dict(instructions(deploy_folder / name))["USER"] for name in CONTAINERFILES}
    [service] = compose["services"].values()
    users |= {service["user"], str(pod["securityContext"]["runAsUser"])}
    assert len(users) == 1
