"""``maple bench``: what it measures, writes and refuses."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import attrs
import numpy as np
import pytest

from maple.bench import peer as peer_module
from maple.bench.peer import Peer
from maple.bench.random_checkpoint import FULL_SIZE, BenchFailed, write_random
from maple.bench.report import as_json, as_table
from maple.bench.rig import Rig, Workload
from maple.bench.suite import Line, Report
from maple.cli.main import main
from maple.native.library import Unavailable, available
from maple.native.model import NativeModel, StepSlice
from maple.native.weights import NativeSource, NativeWeights, load_weights

pytestmark = pytest.mark.skipif(
    isinstance(available(), Unavailable), reason="the kernels, which are measured, are not built here"
)

SMALL = {
    **FULL_SIZE,
    "vocab_size": 512,
    "hidden_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "sliding_window": 64,
    "layer_types": FULL_SIZE["layer_types"][:4],
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A random checkpoint of four layers."""
    folder = tmp_path_factory.mktemp("bench") / "random"
    return write_random(folder, SMALL, progress=lambda done, total: None)


def load(folder: pathlib.Path) -> NativeWeights:
    return load_weights(NativeSource(source=str(folder)), progress=lambda _: None, cancelled=lambda: False)


def test_a_quick_run_measures_everything(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the embedded model, in a second or two: a table on stdout, the same numbers as JSON."""
    assert main(["bench", "--quick", "--json", str(tmp_path / "out.json")]) == 0
    table = capsys.readouterr().out
    content = json.loads((tmp_path / "out.json").read_text())
    assert [line["name"] for line in content["lines"]] == [
        "decode at 32",
        "decode at 256",
        "prefill 32",
        "prefill 256",
        "batch of 8",
        "head alone",
    ]
    for line in content["lines"]:
        assert line["ours"] > 0
        assert line["name"] in table
        assert f"{line['ours']:.1f}" in table
    assert content["path"] in available().paths  # type: ignore[union-attr] # skipped without kernels
    assert min(content["read_bytes_per_second"], content["peak_resident_bytes"], content["load_seconds"]) > 0


def test_a_path_is_measured_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """``--path`` runs those kernels whatever the processor's best are, and the table says so."""
    assert main(["bench", "--quick", "--path", "scalar"]) == 0
    assert "native scalar, int8x2 activations" in capsys.readouterr().out


def test_every_path_is_measured_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    """``--path all`` prints a table for each instruction set of the processor, the best first."""
    assert main(["bench", "--quick", "--path", "all"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if ": native " in line]
    assert [line.split("native ")[1].split(",")[0] for line in heads] == list(available().paths)  # type: ignore[union-attr]


def test_a_random_checkpoint_is_a_maple(small: pathlib.Path) -> None:
    """It loads through the ordinary loader, and its logits are finite and not all alike."""
    loaded = load(small)
    blocks = [0]
    with NativeModel(loaded.shape, loaded.weights, threads=1, kv_blocks=1) as model:
        part = StepSlice(tokens=[1, 2, 3], start=0, blocks=blocks, sliding_blocks=blocks, logits=3)
        rows = model.step([part])
    assert np.isfinite(rows).all()
    assert (rows.std(axis=1) > 0).all()


def test_a_random_checkpoint_is_written_once(small: pathlib.Path) -> None:
    """A second call leaves it as it is, and nothing half-written stays."""
    before = (small / "model.safetensors").stat().st_mtime_ns
    write_random(small, SMALL, progress=lambda done, total: pytest.fail("written again"))
    assert (small / "model.safetensors").stat().st_mtime_ns == before
    assert {path.name for path in small.iterdir()} == {"config.json", "model.safetensors"}


def test_too_small_a_disk_is_one_line(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = attrs.make_class("Usage", ["free"])
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1000))
    with pytest.raises(BenchFailed, match="GB are free"):
        write_random(tmp_path / "random", SMALL, progress=lambda done, total: None)


def test_the_bytes_of_a_token_are_counted(small: pathlib.Path) -> None:
    """Dense parts, the chosen share of the experts, the head, and keys and values up to the window."""
    loaded = load(small)
    rig = Rig(loaded, Workload.quick(), threads=1, activations="int8x2")
    sizes = {name: part.nbytes for name, part in loaded.layout.parts.items()}
    dense = sum(sizes[f"layers.{i}.{name}"] for i in range(4) for name in ("router", "qkv", "output"))
    experts = sum(sizes[f"layers.{i}.{name}"] for i in range(4) for name in ("gate_up", "down"))
    assert rig.token_bytes(0) == pytest.approx(sizes["head"] + dense + experts * 4 / 16)
    one_token = 2 * 2 * 64 * 2  # keys and values, two heads of 64, two bytes each, in a layer
    assert rig.token_bytes(64) - rig.token_bytes(0) == pytest.approx(64 * 4 * one_token)
    assert rig.token_bytes(256) - rig.token_bytes(64) == pytest.approx(192 * 1 * one_token)
    assert rig.batch_bytes() > rig.token_bytes(32)
    rig.model.close()


REPORT = Report(
    model="m",
    path="scalar",
    activations="fp32",
    threads=2,
    load_seconds=1.0,
    mapped=True,
    weight_bytes=10**9,
    peak_resident_bytes=2 * 10**9,
    read_bytes_per_second=1e10,
    lines=(
        Line(name="decode at 128", ours=30.0, peer=15.0, limit=40.0),
        Line(name="prefill 128", ours=100.0, peer=None, limit=None),
    ),
)


def test_ratios_and_shares_stand_beside_the_numbers() -> None:
    """The table has a column for the peer only when it was measured; JSON has everything."""
    rows = as_table(REPORT).splitlines()
    assert rows[-2].split() == ["decode", "at", "128", "30.0", "15.0", "2.00x", "40.0", "75%"]
    assert rows[-1].split() == ["prefill", "128", "100.0"]
    alone = attrs.evolve(REPORT, lines=(attrs.evolve(REPORT.lines[0], peer=None),))
    assert "peer" not in as_table(alone)
    assert json.loads(as_json(REPORT))["lines"][0]["ratio"] == 2.0


FAKE_WORKER = """
import json, sys
options = json.loads(sys.argv[2])
print(json.dumps({"error": "no such file"} if options["threads"] == 13 else {"ready": True}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if question["prompt"] == 666:
        sys.exit(3)
    answer = {"prefill": 2.0 * question["prompt"], "decode": 1.0, "aggregate": 9.0}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def start_peer(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A peer whose worker answers by rote."""
    worker = tmp_path / "worker.py"
    worker.write_text(FAKE_WORKER)
    monkeypatch.setattr(peer_module, "WORKER", worker)

    def start(threads: int = 1) -> Peer:
        model = tmp_path / "model.gguf"
        return Peer(sys.executable, model, SMALL, threads=threads, context=512, slots=2)

    return start


def test_the_peer_is_asked_and_its_end_is_told(start_peer: Any) -> None:
    """Questions and answers are lines of JSON; a worker that ends is one line, not a hang."""
    with start_peer() as peer:
        assert peer.generate(128, 4) == (256.0, 1.0)
        assert peer.batch(8, 128, 4) == 9.0
        with pytest.raises(BenchFailed, match="the peer ended"):
            peer.generate(666, 4)


def test_the_peers_own_errors_are_told(start_peer: Any) -> None:
    with pytest.raises(BenchFailed, match="the peer failed: no such file"):
        start_peer(threads=13)


def test_the_peers_worker_needs_nothing_of_ours(tmp_path: pathlib.Path) -> None:
    """Run by a Python without its libraries, it answers with an error instead of a traceback."""
    options = json.dumps({"threads": 1, "context": 512, "slots": 1, "config": SMALL})
    worker = pathlib.Path(peer_module.__file__).with_name("peer_worker.py")
    done = subprocess.run(
        [sys.executable, "-P", str(worker), str(tmp_path / "model.gguf"), options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0
    assert "gguf" in json.loads(done.stdout)["error"]


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    assert main(["bench", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.endswith("maple: model folder none does not exist\n")
    assert main(["bench", "--quick", "--path", "altivec"]) == 1
    assert "maple: --path altivec: this processor runs" in capsys.readouterr().err
    assert main(["bench", "--threads", "0"]) == 2
    assert "maple bench --help" in capsys.readouterr().err


def test_random_weights_use_every_code_but_three(small: pathlib.Path) -> None:
    """Two-bit words hold the codes 0, 1 and 2 about equally often."""
    raw = (small / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + size])["model.layers.0.mlp.switch_mlp.gate_proj.weight"]
    begin, end = (8 + size + at for at in entry["data_offsets"])
    words = np.frombuffer(raw[begin:end], np.uint8)
    counts = np.bincount(np.concatenate([(words >> shift) & 3 for shift in (0, 2, 4, 6)]), minlength=4)
    assert counts[3] == 0
    assert counts[:3].min() > 0.8 * counts[:3].max()
