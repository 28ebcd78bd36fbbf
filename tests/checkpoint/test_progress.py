"""What a load tells of its progress."""

from __future__ import annotations

import io
import itertools
import pathlib

import pytest
from structlog.testing import capture_logs

from maple.checkpoint.errors import LoadCancelled
from maple.checkpoint.progress import LoadProgress, LoadTracker, ProgressBar, ProgressLog, progress_reporter
from maple.checkpoint.shards import TensorInfo
from maple.torch_model.load import LoadOptions, load


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def at(tensors: int, seconds: float, total: int = 4) -> LoadProgress:
    return LoadProgress(
        bytes_done=tensors * 1000,
        bytes_total=total * 1000,
        tensors_done=tensors,
        tensors_total=total,
        seconds=seconds,
    )


@pytest.mark.parametrize("spelling", ["bf16-stacked", "bf16-per-expert", "mlx-2bit"])
def test_a_load_reports_every_tensor_once(
    spelling: str, golden_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Counts and bytes only grow, end at their totals, and the totals are those of the files' tensors."""
    for cache in (None, tmp_path, tmp_path):
        reports: list[LoadProgress] = []
        load(LoadOptions(source=str(golden_folder / spelling), cache_dir=cache), progress=reports.append)
        assert [report.tensors_done for report in reports] == list(range(1, len(reports) + 1))
        for before, after in itertools.pairwise(reports):
            assert before.bytes_done < after.bytes_done
            assert before.seconds <= after.seconds
        last = reports[-1]
        assert (last.tensors_done, last.bytes_done) == (last.tensors_total, last.bytes_total)
        size = sum(path.stat().st_size for path in (golden_folder / spelling).glob("*.safetensors"))
        assert 0.95 * size < last.bytes_total < size


def test_a_tensor_shared_by_two_counts_once() -> None:
    """A fused tensor is met several times and counted the first time."""
    part = TensorInfo("x", "BF16", (4, 4), "model.safetensors")
    reports: list[LoadProgress] = []
    tracker = LoadTracker([part, part], reports.append, lambda: False)
    tracker.advance(part)
    tracker.advance(part)
    assert [(r.bytes_done, r.bytes_total, r.tensors_done, r.tensors_total) for r in reports] == [
        (32, 32, 1, 1)
    ]
    assert tracker.seconds >= reports[0].seconds >= 0


def test_a_cancelled_tracker_counts_nothing() -> None:
    """The question comes before the count."""
    part = TensorInfo("x", "U8", (4,), "model.safetensors")
    reports: list[LoadProgress] = []
    with pytest.raises(LoadCancelled):
        LoadTracker([part], reports.append, lambda: True).advance(part)
    assert reports == []


def test_a_terminal_gets_one_bar_that_ends() -> None:
    """The bar counts bytes, says what it loads, and is closed by the last tensor."""
    stream = Terminal()
    bar = progress_reporter(stream)
    assert isinstance(bar, ProgressBar)
    for tensors in range(1, 5):
        bar(at(tensors, tensors / 10))
    text = stream.getvalue()
    assert "Loading Maple" in text
    assert "100%" in text
    assert "4.00k/4.00k" in text
    assert text.endswith("\n")


def test_elsewhere_events_are_rare_and_the_last_is_sure() -> None:
    """At most one event in five seconds, one at the end, with bytes, tensors and seconds as fields."""
    assert isinstance(progress_reporter(io.StringIO()), ProgressLog)
    with capture_logs() as logs:
        report = ProgressLog()
        for tensors, seconds in ((1, 0.1), (2, 6.0), (3, 7.0), (4, 7.5)):
            report(at(tensors, seconds))
    assert [
        (entry["event"], entry["tensors_done"], entry["bytes_done"], entry["seconds"]) for entry in logs
    ] == [
        ("model.loading", 2, 2000, 6.0),
        ("model.read", 4, 4000, 7.5),
    ]
