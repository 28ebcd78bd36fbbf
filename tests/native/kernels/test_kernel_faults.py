"""What the kernels refuse, and that a refusal leaves the model usable."""

from __future__ import annotations

import pathlib
import shutil
import threading
from typing import Any

import attrs
import numpy as np
import pytest

from maple.checkpoint.errors import LoadError
from maple.checkpoint.shards import read_shard
from maple.native import library as _library
from maple.native.library import KernelError, KernelInfo, Unavailable, available
from maple.native.model import StepSlice


def test_available_names_the_path() -> None:
    """The best path comes first and the portable one is always among them."""
    info = available()
    assert isinstance(info, KernelInfo)
    assert info.path == info.paths[0]
    assert info.paths[-1] == "scalar"


def test_a_missing_library_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library there is one line that says how to get it."""
    monkeypatch.setattr(_library, "LIBRARY_NAME", "libabsent.so")
    info = available()
    assert isinstance(info, Unavailable)
    assert "python -m maple.native.build" in info.reason


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tokens": [512]}, "outside the vocabulary"),
        ({"tokens": [-1]}, "outside the vocabulary"),
        ({"tokens": []}, "count 0"),
        ({"start": -1}, "start -1"),
        ({"start": 64}, "65 positions, 1 blocks"),
        ({"blocks": [64]}, "not in the pool"),
        ({"sliding_blocks": [-1]}, "not in the pool"),
        ({"sliding_blocks": [0, 1]}, "2 sliding blocks"),
        ({"logits": 2}, "logits 2"),
        ({"tokens": [1] * 257, "blocks": [0, 1, 2, 3, 4], "sliding_blocks": [0, 1, 2, 3, 4]}, "258 tokens"),
    ],
)
def test_a_slice_that_does_not_fit_is_refused(change: dict[str, Any], complaint: str, golden_of: Any) -> None:
    """Nothing runs, the line says what is wrong, and the next step works."""
    good = StepSlice(tokens=[5], start=0, blocks=[0], sliding_blocks=[0])
    with golden_of("mlx-2bit").model() as model:
        before = model.step([good])
        with pytest.raises(KernelError, match=complaint):
            model.step([good, attrs.evolve(good, **change)])
        assert model.step([good]).tobytes() == before.tobytes()


def test_an_empty_step_is_refused(golden_of: Any) -> None:
    """A step needs a token."""
    with golden_of("mlx-2bit").model() as model, pytest.raises(KernelError, match="0 tokens"):
        model.step([])


def test_a_closed_model_says_so(golden_of: Any) -> None:
    """Closing twice is fine; stepping afterwards is an error and no crash."""
    model = golden_of("mlx-2bit").model()
    model.close()
    model.close()
    with pytest.raises(KernelError, match="closed"):
        model.step([StepSlice(tokens=[5], start=0, blocks=[0], sliding_blocks=[0])])


def test_an_unknown_path_is_refused(golden_of: Any) -> None:
    """A path that is not known, or not this processor's, is an error at creation."""
    with pytest.raises(KernelError, match="unknown path"):
        golden_of("mlx-2bit").model(path="sse2")
    foreign = next(
        path for path in _library.PATHS if path not in _library.paths_of(_library.default_library())
    )
    with pytest.raises(KernelError, match="cannot run"):
        golden_of("mlx-2bit").model(path=foreign)


def test_weights_of_another_shape_are_refused(golden_of: Any) -> None:
    """Each matrix is checked against the configuration by name."""
    golden = golden_of("mlx-2bit")
    wrong = attrs.evolve(golden, shape=attrs.evolve(golden.shape, experts=9))
    with pytest.raises(KernelError, match="router"):
        wrong.model()
    narrow = attrs.evolve(golden, shape=attrs.evolve(golden.shape, heads=2))
    with pytest.raises(KernelError, match="qkv"):
        narrow.model()


def test_two_threads_cannot_step_at_once(golden_of: Any) -> None:
    """Whoever comes second is told; neither step is damaged."""
    refused, good = [], StepSlice(tokens=[7] * 200, start=0, blocks=[0, 1, 2, 3], sliding_blocks=[0, 1, 2, 3])
    answers: set[bytes] = set()
    with golden_of("mlx-2bit").model(threads=1) as model:

        def run() -> None:
            for _ in range(50):
                try:
                    answers.add(model.step([good]).tobytes())
                except KernelError as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(answers) == 1
    assert all("one at a time" in line for line in refused)


def test_a_poisoned_sequence_leaves_its_neighbours_alone(golden_of: Any, sequences: Any) -> None:
    """NaN in one sequence's KV makes its own logits NaN and nobody else's."""
    golden = golden_of("mlx-2bit")
    sick, well = sequences(2)
    with golden.model() as model:
        model.step([sick.slice(golden.prompts[1], 1), well.slice(golden.prompts[1], 1)])
        model.kv_block(sick.blocks[0], sliding=False)[:] = 0xFF
        both = model.step([sick.slice([5], 1), well.slice([5], 1)])
    assert np.isnan(both[0]).all()
    assert np.isfinite(both[1]).all()


def test_truncated_and_foreign_files_are_refused(tmp_path: pathlib.Path) -> None:
    """A checkpoint cut short, or not safetensors at all, is an error before anything is packed."""
    source = pathlib.Path(__file__).parents[2] / "data" / "golden" / "mlx-2bit"
    shutil.copytree(source, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    whole = weights.read_bytes()
    weights.chmod(0o644)
    weights.write_bytes(whole[:-1000])
    with pytest.raises(LoadError, match="truncated"):
        read_shard(weights)
    weights.write_bytes(b"\xff" * 64)
    with pytest.raises(LoadError, match="not a safetensors"):
        read_shard(weights)
