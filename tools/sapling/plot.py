"""The curves of a run, from its log, as one picture for the model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

SHOWN = {
    "sum": "+",
    "difference": "−",
    "product": "×",
    "fact": "facts",
    "recall": "earlier-turn recall",
    "tool_call": "tool call",
    "two_calls": "two calls",
    "no_tool": "no tool fits",
    "tool_result": "answer from a result",
}


def plot(log: Path, picture: Path) -> None:
    """Draws the training loss (left) and the held-out exact matches per kind (right) over tokens, into an
    SVG or PNG.
    """
    entries: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    losses = [entry for entry in entries if "loss" in entry]
    probes = [entry for entry in entries if "right" in entry]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    left.plot(
        [entry["tokens"] / 1e6 for entry in losses], [entry["loss"] for entry in losses], color="#8a3324"
    )
    left.set(xlabel="million tokens", ylabel="loss on learnt tokens", yscale="log", title="training")
    for position, (kind, label) in enumerate(SHOWN.items()):
        style = "-" if position < 5 else "--"
        right.plot(
            [p["tokens"] / 1e6 for p in probes],
            [p["right"][kind] for p in probes],
            style,
            label=label,
            linewidth=1.4,
        )
    right.set(
        xlabel="million tokens",
        ylabel="whole reply exactly right, %",
        ylim=(0, 102),
        title="held out, teacher-forced",
    )
    right.legend(fontsize=7, ncols=2, loc="lower right")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None, dpi=110)
    pyplot.close(figure)
