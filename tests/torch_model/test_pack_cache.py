"""Packs that torch keeps: whole, found again, or made anew."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from maple_testing.guard import HANG_GUARD
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from maple.checkpoint.errors import LoadError
from maple.checkpoint.shards import read_shard
from maple.torch_model.kept_rows import KeptRows, rows_key
from maple.torch_model.load import LoadedModel
from maple.torch_model.ternary import TernaryTensor, pack

Load = Callable[..., LoadedModel]

LOADER = """
import os, pathlib, sys
from maple.torch_model.load import LoadOptions, load
source, cache = sys.argv[1:3]
if sys.argv[3:] == ["die"]:
    os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
loaded = load(LoadOptions(source=source, cache_dir=pathlib.Path(cache)), progress=lambda p: None)
print(loaded.from_cache, loaded.packed_tensors)
"""


@pytest.fixture
def cache(tmp_path: pathlib.Path) -> pathlib.Path:
    """A cache folder that is not there yet."""
    return tmp_path / "cache"


def entries(cache: pathlib.Path) -> list[pathlib.Path]:
    """Everything below packs but its lock: whole entries, and whatever should not be there."""
    return sorted(path for path in (cache / "packs").iterdir() if path.name != "lock")


def events(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs if entry["log_level"] == "warning"]


def forward(loaded: LoadedModel) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = loaded.model(torch.arange(30)[None] * 13, use_cache=False).logits
    return logits


def run_loader(*args: str | pathlib.Path) -> subprocess.Popen[str]:
    """Load in a process of its own; the repository root is where maple is found."""
    root = pathlib.Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", LOADER, *map(str, args)],
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("spelling", ["bf16-stacked", "bf16-per-expert", "mlx-2bit"])
def test_the_second_load_finds_what_the_first_made(
    spelling: str, cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """An entry is written once, found again, and gives the same model bit for bit."""
    first = load_model(golden_folder / spelling, cache_dir=cache)
    second = load_model(golden_folder / spelling, cache_dir=cache)
    assert (first.from_cache, second.from_cache) == (False, True)
    assert len(entries(cache)) == 1
    assert torch.equal(forward(first), forward(second))
    assert first.packed_tensors == second.packed_tensors == 28
    assert first.bytes == second.bytes


def test_only_what_took_work_is_stored(
    cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """A float checkpoint's entry holds the packed rows as safetensors; a two-bit one's holds no tensors."""
    load_model(golden_folder / "bf16-stacked", cache_dir=cache)
    (entry,) = entries(cache)
    assert {path.name for path in entry.iterdir()} == {"manifest.json", "packed-00.safetensors", "lock"}
    stored = load_file(entry / "packed-00.safetensors")
    assert len(stored) == 2 * 28
    assert stored["model.layers.0.mlp.experts.gate.codes"].dtype == torch.uint8
    shutil.rmtree(cache)
    load_model(golden_folder / "mlx-2bit", cache_dir=cache)
    (entry,) = entries(cache)
    assert {path.name for path in entry.iterdir()} == {"manifest.json", "lock"}


def test_a_large_pack_is_cut_into_files(
    cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a file has grown to its limit the next is begun; the entry is read back whole."""
    monkeypatch.setattr("maple.torch_model.kept_rows._FILE_BYTES", 100_000)
    load_model(golden_folder / "bf16-stacked", cache_dir=cache)
    (entry,) = entries(cache)
    assert sorted(path.name for path in entry.glob("*.safetensors")) == [
        f"packed-0{i}.safetensors" for i in range(3)
    ]
    assert load_model(golden_folder / "bf16-stacked", cache_dir=cache).from_cache


def test_packing_off_leaves_the_cache_alone(
    cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """Dense weights are neither stored nor looked for."""
    assert not load_model(golden_folder / "bf16-stacked", cache_dir=cache, pack_experts="false").from_cache
    assert not cache.exists()


def test_a_file_of_another_time_is_another_source(
    cache: pathlib.Path, copy_of: Any, load_model: Load
) -> None:
    """A weight file that was written again is packed again, and the entry nobody can find any more goes."""
    folder = copy_of("bf16-stacked")
    load_model(folder.path, cache_dir=cache)
    before = entries(cache)
    status = folder.weights.stat()
    os.utime(folder.weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert not load_model(folder.path, cache_dir=cache).from_cache
    after = entries(cache)
    assert len(after) == 1
    assert after != before
    assert load_model(folder.path, cache_dir=cache).from_cache


def test_entries_of_other_folders_stay(cache: pathlib.Path, copy_of: Any, load_model: Load) -> None:
    """Cleaning up after one checkpoint touches no other's entry, readable or not."""
    load_model(copy_of("bf16-per-expert").path, cache_dir=cache)
    (other,) = entries(cache)
    broken = cache / "packs" / "0"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    folder = copy_of("bf16-stacked")
    load_model(folder.path, cache_dir=cache)
    assert other in entries(cache)
    assert broken in entries(cache)


def test_files_of_the_hub_are_known_by_their_hash(
    tmp_path: pathlib.Path, golden_folder: pathlib.Path
) -> None:
    """A link into the hub's blobs keeps its key when it is fetched again, and loses it with another blob."""
    keys = []
    for blob, touch in (("aaaa", 1), ("aaaa", 2), ("bbbb", 2)):
        folder = tmp_path / f"{blob}{touch}"
        (folder / "blobs").mkdir(parents=True)
        (folder / "snapshots").mkdir()
        shutil.copyfile(golden_folder / "bf16-stacked" / "model.safetensors", folder / "blobs" / blob)
        os.utime(folder / "blobs" / blob, (touch, touch))
        (folder / "snapshots" / "model.safetensors").symlink_to(folder / "blobs" / blob)
        keys.append(rows_key([read_shard(folder / "snapshots" / "model.safetensors")]))
    assert keys[0] == keys[1] != keys[2]


def spoil_manifest(entry: pathlib.Path) -> None:
    (entry / "manifest.json").write_text("{")


def empty_manifest(entry: pathlib.Path) -> None:
    (entry / "manifest.json").write_text("{}")


def lose_manifest(entry: pathlib.Path) -> None:
    (entry / "manifest.json").unlink()


def other_layout(entry: pathlib.Path) -> None:
    content = json.loads((entry / "manifest.json").read_text())
    (entry / "manifest.json").write_text(json.dumps(content | {"layout": "rows5"}))


def lose_file(entry: pathlib.Path) -> None:
    (entry / "packed-00.safetensors").unlink()


def truncate_file(entry: pathlib.Path) -> None:
    path = entry / "packed-00.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def replace_file(entry: pathlib.Path) -> None:
    save_file({"x": torch.ones(1)}, entry / "packed-00.safetensors")


def _rewrite(entry: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write other tensors and make the manifest vouch for them."""
    path = entry / "packed-00.safetensors"
    save_file(tensors, path)
    shard = read_shard(path)
    content = json.loads((entry / "manifest.json").read_text())
    content["files"] = {path.name: {"size": shard.size, "header_sha256": shard.header_sha256}}
    (entry / "manifest.json").write_text(json.dumps(content))


def lose_scales(entry: pathlib.Path) -> None:
    tensors = load_file(entry / "packed-00.safetensors")
    tensors.pop("model.layers.0.self_attn.q_proj.alpha")
    _rewrite(entry, tensors)


def misshape(entry: pathlib.Path) -> None:
    tensors = load_file(entry / "packed-00.safetensors")
    tensors["model.layers.0.self_attn.q_proj.codes"] = torch.zeros(256, 16, dtype=torch.uint8)
    _rewrite(entry, tensors)


def misshape_scales(entry: pathlib.Path) -> None:
    tensors = load_file(entry / "packed-00.safetensors")
    tensors["model.layers.0.self_attn.q_proj.alpha"] = torch.ones(3).bfloat16()
    _rewrite(entry, tensors)


def retype(entry: pathlib.Path) -> None:
    tensors = load_file(entry / "packed-00.safetensors")
    name = "model.layers.0.self_attn.q_proj.codes"
    tensors[name] = tensors[name].to(torch.int16)
    _rewrite(entry, tensors)


def unknown_tensor(entry: pathlib.Path) -> None:
    _rewrite(entry, {"x.codes": torch.zeros(2, 2, dtype=torch.uint8), "x.alpha": torch.ones(2).bfloat16()})


def strange_name(entry: pathlib.Path) -> None:
    _rewrite(entry, {"codes": torch.zeros(2, 2, dtype=torch.uint8)})


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_manifest,
        empty_manifest,
        lose_manifest,
        other_layout,
        lose_file,
        truncate_file,
        replace_file,
        lose_scales,
        misshape,
        misshape_scales,
        retype,
        unknown_tensor,
        strange_name,
    ],
)
def test_an_entry_that_is_not_whole_is_made_anew(
    spoil: Callable[[pathlib.Path], None], cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """Whatever is wrong, the load goes on with one warning, the model is right, the entry is replaced."""
    expected = forward(load_model(golden_folder / "bf16-stacked", cache_dir=cache))
    (entry,) = entries(cache)
    spoil(entry)
    with capture_logs() as logs:
        loaded = load_model(golden_folder / "bf16-stacked", cache_dir=cache)
    assert events(logs) == ["pack.unusable"]
    assert not loaded.from_cache
    assert torch.equal(forward(loaded), expected)
    assert entries(cache) == [entry]
    assert load_model(golden_folder / "bf16-stacked", cache_dir=cache).from_cache


def test_an_entry_cannot_name_files_elsewhere(
    cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """A manifest that reaches out of its folder is not followed."""
    load_model(golden_folder / "bf16-stacked", cache_dir=cache)
    (entry,) = entries(cache)
    content = json.loads((entry / "manifest.json").read_text())
    content["files"] = {"../../outside.safetensors": content["files"]["packed-00.safetensors"]}
    (entry / "packed-00.safetensors").rename(cache / "outside.safetensors")
    (entry / "manifest.json").write_text(json.dumps(content))
    with capture_logs() as logs:
        assert not load_model(golden_folder / "bf16-stacked", cache_dir=cache).from_cache
    assert events(logs) == ["pack.unusable"]


@pytest.mark.parametrize("spelling", ["bf16-stacked", "mlx-2bit"])
def test_a_cache_that_cannot_be_written_is_not_fatal(
    spelling: str, tmp_path: pathlib.Path, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """Where no folder can be made (a file is in the way) the load succeeds, with one warning."""
    (tmp_path / "cache").write_text("not a folder")
    with capture_logs() as logs:
        loaded = load_model(golden_folder / spelling, cache_dir=tmp_path / "cache")
    assert events(logs) == ["pack.not_stored"]
    assert (loaded.from_cache, loaded.packed_tensors) == (False, 28)


@pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="/proc is the folder nobody may write to")
def test_a_read_only_cache_is_not_fatal(golden_folder: pathlib.Path, load_model: Load) -> None:
    """On a file system that takes no folders, not even root's, the load succeeds, with one warning."""
    with capture_logs() as logs:
        loaded = load_model(golden_folder / "bf16-stacked", cache_dir=pathlib.Path("/proc/maple"))
    assert events(logs) == ["pack.not_stored"]
    assert loaded.packed_tensors == 28


def test_a_full_disk_is_not_fatal(
    cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little room is seen before anything is written; nothing is left behind."""
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with capture_logs() as logs:
        loaded = load_model(golden_folder / "bf16-stacked", cache_dir=cache)
    assert events(logs) == ["pack.no_room"]
    assert (loaded.packed_tensors, entries(cache)) == (28, [])


def test_a_write_that_fails_leaves_nothing(
    cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the disk while syncing: the load succeeds, and no half entry stays."""

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with capture_logs() as logs:
        loaded = load_model(golden_folder / "bf16-stacked", cache_dir=cache)
    assert events(logs) == ["pack.not_stored"]
    assert (loaded.packed_tensors, entries(cache)) == (28, [])


def test_a_kill_midway_leaves_no_entry_and_is_cleaned_up(
    cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """A process killed while writing leaves nothing that is found, and the next writer removes it."""
    process = run_loader(golden_folder / "bf16-stacked", cache, "die")
    process.communicate(timeout=HANG_GUARD)
    assert process.returncode == -9
    (abandoned,) = entries(cache)
    assert abandoned.name.startswith(".writing-")
    loaded = load_model(golden_folder / "bf16-stacked", cache_dir=cache)
    assert not loaded.from_cache
    (entry,) = entries(cache)
    assert not entry.name.startswith(".")
    assert load_model(golden_folder / "bf16-stacked", cache_dir=cache).from_cache


def test_two_processes_at_once_leave_one_entry(
    cache: pathlib.Path, golden_folder: pathlib.Path, load_model: Load
) -> None:
    """Both load; the entry is whole whoever was last."""
    processes = [run_loader(golden_folder / "bf16-stacked", cache) for _ in range(2)]
    for process in processes:
        output, errors = process.communicate(timeout=HANG_GUARD)
        assert process.returncode == 0, errors
        assert output.splitlines()[-1].endswith(" 28")
    assert len(entries(cache)) == 1
    assert load_model(golden_folder / "bf16-stacked", cache_dir=cache).from_cache


def test_many_writers_and_readers_of_one_entry(tmp_path: pathlib.Path) -> None:
    """While writers replace an entry again and again, a reader finds it whole or not at all."""
    store = KeptRows(tmp_path)
    weight = (torch.randint(-1, 2, (64, 64)) * 0.5).bfloat16()
    tensors = {"x": pack(weight)}
    shapes: dict[str, tuple[int, ...]] = {"x": (64, 64)}

    def write() -> bool:
        return all(store.store("key", tensors, tmp_path) for _ in range(10))

    def read() -> int:
        found = 0
        for _ in range(40):
            entry = store.find("key", shapes)
            found += entry is not None
            assert entry is None or torch.equal(entry["x"].dense(torch.bfloat16), weight)
        return found

    with capture_logs(), concurrent.futures.ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write) for _ in range(2)]
        readers = [pool.submit(read) for _ in range(2)]
        assert all(writer.result() for writer in writers)
        assert all(reader.result() >= 0 for reader in readers)
    assert entries(tmp_path) == [tmp_path / "packs" / "key"]
    found = store.find("key", shapes)
    assert found is not None
    assert isinstance(found["x"], TernaryTensor)


def test_pickles_are_never_read(copy_of: Any, load_model: Load) -> None:
    """A folder with only a pickled checkpoint is a folder without weights."""
    folder = copy_of("bf16-stacked")
    torch.save(folder.tensors(), folder.path / "pytorch_model.bin")
    folder.weights.unlink()
    with pytest.raises(LoadError, match="holds neither"):
        load_model(folder.path)
