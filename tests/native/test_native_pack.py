"""Packs: written once, mapped afterwards, and checked."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from maple_testing.engine import never, quiet

from maple.checkpoint.errors import LoadError
from maple.checkpoint.folder import PACK_MANIFEST
from maple.native.fingerprint import FORMAT
from maple.native.library import available
from maple.native.model import NativeModel, StepSlice
from maple.native.pack import PackReport, pack
from maple.native.weights import NativeSource, NativeWeights, load_weights

SPELLINGS = ["mlx-2bit", "bf16-stacked", "bf16-per-expert"]
ROOT = pathlib.Path(__file__).parents[2]


def load(folder: pathlib.Path, **options: Any) -> NativeWeights:
    return load_weights(NativeSource(source=str(folder), **options), progress=quiet, cancelled=never)


def make_pack(source: pathlib.Path, destination: pathlib.Path, **options: Any) -> PackReport:
    return pack(str(source), destination, progress=quiet, cancelled=never, **options)


def logits(loaded: NativeWeights, ids: list[int], path: str | None = None) -> npt.NDArray[np.float32]:
    blocks = list(range(-(-len(ids) // 64)))
    part = StepSlice(tokens=ids, start=0, blocks=blocks, sliding_blocks=blocks, logits=len(ids))
    model = NativeModel(
        loaded.shape, loaded.weights, threads=2, kv_blocks=len(blocks), max_tokens=len(ids), path=path
    )
    with model:
        return model.step([part]).copy()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_pack_gives_the_same_bits(
    golden_folder: pathlib.Path, tmp_path: pathlib.Path, prompts: Any, spelling: str
) -> None:
    """Packed and loaded again, on every path of this processor, the logits are those of the checkpoint."""
    report = make_pack(golden_folder / spelling, tmp_path / "pack")
    assert report.written
    packed, plain = load(tmp_path / "pack"), load(golden_folder / spelling)
    assert packed.packed
    assert not plain.packed
    for path in available().paths:  # type: ignore[union-attr] # skipped without kernels
        np.testing.assert_array_equal(logits(packed, prompts[2], path), logits(plain, prompts[2], path))


def test_packs_do_not_depend_on_the_spelling_or_the_threads(
    golden_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Two spellings of the same weights become the same bytes, with any number of threads."""
    make_pack(golden_folder / "bf16-stacked", tmp_path / "one", threads=1)
    make_pack(golden_folder / "bf16-per-expert", tmp_path / "two", threads=3)
    assert (tmp_path / "one/model.safetensors").read_bytes() == (
        tmp_path / "two/model.safetensors"
    ).read_bytes()


def test_a_pack_is_a_folder_that_can_be_served(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """It carries the config and the tokenizer's files, and nothing hidden is left beside it."""
    make_pack(golden_folder / "mlx-2bit", tmp_path / "pack")
    names = {path.name for path in (tmp_path / "pack").iterdir()}
    assert names == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
        PACK_MANIFEST,
    }
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]
    manifest = (tmp_path / "pack" / PACK_MANIFEST).read_text()
    assert json.loads(manifest)["source"] == "mlx-2bit"
    assert str(golden_folder) not in manifest


def test_packing_again_does_nothing(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The same files are not packed twice; other ones replace a pack only when that is asked for."""
    destination = tmp_path / "pack"
    make_pack(golden_folder / "mlx-2bit", destination)
    before = (destination / "model.safetensors").stat().st_mtime_ns
    assert not make_pack(golden_folder / "mlx-2bit", destination).written
    assert (destination / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(LoadError, match="--force"):
        make_pack(golden_folder / "bf16-stacked", destination)
    assert make_pack(golden_folder / "bf16-stacked", destination, replace=True).written
    assert json.loads((destination / PACK_MANIFEST).read_text())["source"] == "bf16-stacked"
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]


def test_no_other_folder_is_overwritten(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A folder that holds anything but a pack, and a file, are refused and left as they are."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("text")
    for name in ("mine", "file"):
        with pytest.raises(LoadError, match=f"^{name} "):
            make_pack(golden_folder / "mlx-2bit", tmp_path / name, replace=True)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    assert (tmp_path / "file").read_text() == "text"


def damaged(folder: pathlib.Path, fault: str) -> None:
    weights, manifest = folder / "model.safetensors", folder / PACK_MANIFEST
    content = json.loads(manifest.read_text())
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:-64])
    elif fault == "another header":
        weights.write_bytes(weights.read_bytes().replace(b"layers.0.qkv", b"layers.0.QKV", 1))
    elif fault == "no weights":
        weights.unlink()
    elif fault == "another layout":
        manifest.write_text(json.dumps(content | {"layout": "0" * 16}))
    elif fault == "another format":
        manifest.write_text(json.dumps(content | {"format": 999}))
    elif fault == "unknown kind":
        manifest.write_text(json.dumps(content | {"forms": content["forms"] | {"head": "FP4"}}))
    elif fault == "no forms":
        manifest.write_text(json.dumps(content | {"forms": None}))
    elif fault == "another config":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_experts": 16}))


@pytest.mark.parametrize(
    "fault",
    [
        "truncated",
        "another header",
        "no weights",
        "another layout",
        "another format",
        "unknown kind",
        "no forms",
        "another config",
    ],
)
def test_a_damaged_pack_is_one_line(golden_folder: pathlib.Path, tmp_path: pathlib.Path, fault: str) -> None:
    """A pack that is not whole, or that other kernels made, is refused with a line that names the fault."""
    make_pack(golden_folder / "mlx-2bit", tmp_path / "pack")
    damaged(tmp_path / "pack", fault)
    with pytest.raises(LoadError) as error:
        load(tmp_path / "pack")
    assert str(tmp_path) not in str(error.value)


def test_torch_says_what_a_pack_is(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Where the kernels are missing a pack is refused by name, not for its first tensor."""
    from maple.checkpoint.folder import Checkpoint

    make_pack(golden_folder / "mlx-2bit", tmp_path / "pack")
    with pytest.raises(LoadError, match="packed for the native kernels"):
        Checkpoint.open(tmp_path / "pack")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_cache_is_filled_and_found(
    golden_folder: pathlib.Path, tmp_path: pathlib.Path, prompts: Any, spelling: str
) -> None:
    """The first load keeps a pack, the second maps it, and both compute the same."""
    folder = golden_folder / spelling
    plain = logits(load(folder), prompts[2])
    for _ in range(2):
        loaded = load(folder, cache_dir=tmp_path, keep_from=0)
        assert loaded.packed
        assert loaded.folder == folder
        np.testing.assert_array_equal(logits(loaded, prompts[2]), plain)
    assert len(list((tmp_path / "native").glob("*/model.safetensors"))) == 1


def test_an_unusable_entry_is_replaced(copy_of: Any, tmp_path: pathlib.Path) -> None:
    """A truncated entry is packed anew; a changed checkpoint gets a new entry and the old one goes."""
    folder = copy_of("mlx-2bit")
    load(folder.path, cache_dir=tmp_path, keep_from=0)
    (entry,) = (tmp_path / "native").glob("*/model.safetensors")
    size = entry.stat().st_size
    entry.write_bytes(b"short")
    load(folder.path, cache_dir=tmp_path, keep_from=0)
    assert entry.stat().st_size == size
    os.utime(folder.path / "model.safetensors", ns=(1, 1))
    load(folder.path, cache_dir=tmp_path, keep_from=0)
    (other,) = (tmp_path / "native").glob("*/model.safetensors")
    assert other != entry


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A Maple whose packs had the format before; undone where a test says so."""
    with monkeypatch.context() as patch:
        for module in ("packfile", "weights"):
            patch.setattr(f"maple.native.{module}.FORMAT", FORMAT - 1)
        yield patch


def test_a_pack_of_an_older_format_is_refused_and_made_anew(
    older: pytest.MonkeyPatch, golden_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """With a line that says what to do; then packing again makes one that is read."""
    make_pack(golden_folder / "mlx-2bit", tmp_path / "pack")
    older.undo()
    with pytest.raises(
        LoadError, match=r"^pack was packed for other kernels than these: pack its checkpoint again$"
    ):
        load(tmp_path / "pack")
    assert make_pack(golden_folder / "mlx-2bit", tmp_path / "pack", replace=True).written
    assert load(tmp_path / "pack").packed


def test_a_cached_pack_of_an_older_format_is_made_anew(
    older: pytest.MonkeyPatch, golden_folder: pathlib.Path, tmp_path: pathlib.Path, prompts: Any
) -> None:
    """Nobody has to ask for it, the old one goes, and what is computed is the same."""
    folder = golden_folder / "mlx-2bit"
    before = logits(load(folder, cache_dir=tmp_path, keep_from=0), prompts[2])
    (old,) = (tmp_path / "native").glob("*/model.safetensors")
    older.undo()
    np.testing.assert_array_equal(logits(load(folder, cache_dir=tmp_path, keep_from=0), prompts[2]), before)
    (new,) = (tmp_path / "native").glob("*/model.safetensors")
    assert new != old


def test_a_cache_that_cannot_be_written_stops_no_load(
    golden_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Where a file stands in the cache folder's place, the weights are packed in memory."""
    (tmp_path / "cache").write_text("a file")
    assert not load(golden_folder / "mlx-2bit", cache_dir=tmp_path / "cache", keep_from=0).packed


def test_small_models_are_not_kept(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """By default nothing is written for a model that is packed in no time."""
    assert not load(golden_folder / "mlx-2bit", cache_dir=tmp_path).packed
    assert list(tmp_path.iterdir()) == []


SLOW_PACK = """
import sys, pathlib
from maple.native.pack import pack
def report(progress):
    print(progress.tensors_done, flush=True)
    if progress.tensors_done == int(sys.argv[3]):
        sys.stdin.read()
pack(sys.argv[1], pathlib.Path(sys.argv[2]), progress=report, cancelled=lambda: False)
"""


@pytest.fixture
def halfway(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    """A process that packs to tmp_path/pack and waits halfway until its input closes."""
    command = [sys.executable, "-c", SLOW_PACK, str(golden_folder / "mlx-2bit"), str(tmp_path / "pack"), "40"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "40":
                break
        yield process
        process.kill()


def test_a_killed_pack_leaves_nothing_that_counts(
    golden_folder: pathlib.Path, tmp_path: pathlib.Path, halfway: subprocess.Popen[str]
) -> None:
    """Killed in the middle (-9): no folder appears, and the next run clears up and succeeds."""
    halfway.send_signal(signal.SIGKILL)
    halfway.wait()
    assert not (tmp_path / "pack").exists()
    assert (tmp_path / ".pack.packing").is_dir()
    assert make_pack(golden_folder / "mlx-2bit", tmp_path / "pack").written
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]
    assert load(tmp_path / "pack").packed


def test_two_packs_to_one_place_make_one(
    golden_folder: pathlib.Path, tmp_path: pathlib.Path, halfway: subprocess.Popen[str]
) -> None:
    """The second waits for the first and finds its work done."""
    reports: list[PackReport] = []
    second = threading.Thread(
        target=lambda: reports.append(make_pack(golden_folder / "mlx-2bit", tmp_path / "pack"))
    )
    second.start()
    assert halfway.stdin is not None
    halfway.stdin.close()
    assert halfway.wait() == 0
    second.join()
    assert [report.written for report in reports] == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]


SLOW_LOAD = """
import sys, pathlib
from maple.native.weights import NativeSource, load_weights
def report(progress):
    if progress.tensors_done == 40:
        print("halfway", flush=True)
        sys.stdin.read()
source = NativeSource(source=sys.argv[1], cache_dir=pathlib.Path(sys.argv[2]), keep_from=0)
print(load_weights(source, progress=report, cancelled=lambda: False).packed)
"""


@pytest.mark.parametrize("end", ["killed", "finished"])
def test_two_processes_fill_one_cache(golden_folder: pathlib.Path, tmp_path: pathlib.Path, end: str) -> None:
    """While one process is halfway another fills the cache; killed or not, one whole entry is there after."""
    folder = golden_folder / "mlx-2bit"
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_LOAD, str(folder), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while process.stdout.readline().strip() != "halfway":
            pass
        assert load(folder, cache_dir=tmp_path, keep_from=0).packed
        if end == "killed":
            process.kill()
        process.stdin.close()
        assert process.wait() == (-signal.SIGKILL if end == "killed" else 0)
    written = list((tmp_path / "native").glob("*/model.safetensors"))
    assert len([path for path in written if not path.parent.name.startswith(".")]) == 1
    assert len(written) == (2 if end == "killed" else 1)
    assert load(folder, cache_dir=tmp_path, keep_from=0).packed


def test_what_a_killed_load_left_is_cleared(copy_of: Any, tmp_path: pathlib.Path) -> None:
    """The next that writes to the cache removes what nobody holds any more."""
    left = tmp_path / "native" / ".writing-left"
    left.mkdir(parents=True)
    (left / "lock").touch()
    (left / "model.safetensors").write_bytes(b"half")
    assert load(copy_of("mlx-2bit").path, cache_dir=tmp_path, keep_from=0).packed
    assert not left.exists()


def test_the_command_packs(golden_folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """``maple pack`` says what it wrote, then that it is there; mistakes are one line."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "maple", "pack", *map(str, words)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    source = golden_folder / "mlx-2bit"
    first, second = (run(source, tmp_path / "pack") for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout.startswith("packed")
    assert "is packed already" in second.stdout
    wrong = run(tmp_path / "none", tmp_path / "other")
    assert (wrong.returncode, wrong.stderr) == (1, "maple: model folder none does not exist\n")
    wrong = run(source)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "maple pack --help" in wrong.stderr
