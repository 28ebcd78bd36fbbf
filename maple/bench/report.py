"""A run's report as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import attrs

from maple.bench.suite import Line, Report


def as_table(report: Report) -> str:
    """Tokens a second, with the peer and the memory's limit beside them where they are known."""
    return "\n".join([*_head(report), *_rows(report)])


def as_json(report: Report) -> str:
    """Everything, ratios and shares included."""
    content = attrs.asdict(report)
    for entry, line in zip(content["lines"], report.lines, strict=True):
        entry |= {"ratio": line.ratio, "share": line.share}
    return json.dumps(content, indent=1)


def _head(report: Report) -> Iterator[str]:
    how = "mapped" if report.mapped else "packed in memory"
    yield f"{report.model}: native {report.path}, {report.activations} activations, {report.threads} threads"
    yield (
        f"load {report.load_seconds:.2f} s ({how}), weights {report.weight_bytes / 1e9:.2f} GB, "
        f"peak resident {report.peak_resident_bytes / 1e9:.2f} GB, "
        f"memory reads {report.read_bytes_per_second / 1e9:.1f} GB/s"
    )
    if report.peer_path:
        yield f"peer: llama.cpp with {report.peer_path}"


def _rows(report: Report) -> Iterator[str]:
    peer = any(line.peer for line in report.lines)
    yield ""
    yield (
        f"{'tokens a second':<18}{'ours':>9}"
        + (f"{'peer':>9}{'ratio':>8}" if peer else "")
        + (f"{'limit':>9}{'share':>8}")
    )
    for line in report.lines:
        yield f"{line.name:<18}{line.ours:>9.1f}" + (_peer_cells(line) if peer else "") + _limit_cells(line)


def _peer_cells(line: Line) -> str:
    return f"{line.peer:>9.1f}{line.ratio:>7.2f}x" if line.peer and line.ratio else f"{'':>17}"


def _limit_cells(line: Line) -> str:
    return f"{line.limit:>9.1f}{line.share:>8.0%}" if line.limit and line.share else ""
