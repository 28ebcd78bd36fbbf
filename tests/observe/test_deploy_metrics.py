"""The dashboard and the alert rules ask for metrics and labels that the server really has."""

from __future__ import annotations

import asyncio
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from maple.engine.admission import QueueLimits
from maple.engine.api import Finish
from maple.observe.metrics import Metrics, TurnTimes
from maple.scripted.engine import ScriptedEngine, scripted_served
from maple.scripted.script import Recording

DEPLOY = pathlib.Path(__file__).parents[2] / "deploy"
WORDS = {
    *("sum", "max", "rate", "absent", "histogram_quantile", "label_values"),
    *("by", "on", "and", "or", "unless"),
}
TARGET_LABELS = {"job", "instance"}
"""What Prometheus itself adds to every series."""


async def exposition(folder: pathlib.Path) -> str:
    """/metrics of a loaded server that has answered one request."""
    engine = ScriptedEngine((Recording(pieces=("x",)),), served=scripted_served(folder), limits=QueueLimits())
    metrics = Metrics(engine, version="1")
    engine.start()
    await engine.loaded()
    metrics.answered("/v1/chat/completions", 200)
    metrics.turn_ended(1.0)
    finish = Finish(reason="stop", prompt_tokens=1, completion_tokens=2)
    metrics.turn_finished(TurnTimes(finish=finish, reasoning_tokens=1, first_token_seconds=1.0))
    text = metrics.exposition().decode()
    await engine.close()
    return text


@pytest.fixture(scope="module")
def exposed(golden_folder: pathlib.Path) -> dict[str, set[str]]:
    """Every sample's name and its labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(asyncio.run(exposition(golden_folder / "mlx-2bit"))):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text("utf-8"))


def rules() -> Any:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"]
    return group["rules"]


def expressions() -> Iterator[str]:
    board = dashboard()
    yield from (target["expr"] for panel in board["panels"] for target in panel.get("targets", ()))
    yield from (each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query")
    yield from (rule["expr"] for rule in rules())


@attrs.frozen
class Asked:
    """What an expression names."""

    metrics: set[str]
    labels: set[str]


def asked(expression: str) -> Asked:
    """The metrics and labels of an expression. Raises for a word that is neither these nor PromQL's."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", bare))
    for names in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", bare):
        labels.update(re.findall(r"\w+", names))
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(?:by|on)\s*\([^)]*\)", " ", bare)
    words = set(re.findall(r"[A-Za-z_]\w*", bare)) - WORDS - TARGET_LABELS
    metrics = {word for word in words if word.startswith("maple_")}
    assert words == metrics, f"{expression}: {words - metrics}"
    return Asked(metrics, labels)


@pytest.mark.parametrize("expression", [*expressions()])
def test_every_metric_and_label_is_real(exposed: dict[str, set[str]], expression: str) -> None:
    """A renamed metric would leave a silent alert and an empty panel."""
    found = asked(expression)
    assert found.metrics
    assert found.metrics <= set(exposed)
    known = TARGET_LABELS.union(*(exposed[name] for name in found.metrics))
    assert found.labels <= known


def test_every_metric_is_on_the_dashboard(exposed: dict[str, set[str]]) -> None:
    """Whatever is worth counting is worth showing; of histograms, the buckets."""
    shown = set().union(*(asked(expression).metrics for expression in expressions()))
    parts = re.compile(r"_(sum|count)$")
    assert {name for name in exposed if not parts.search(name)} <= shown


def test_an_unknown_name_would_be_found(exposed: dict[str, set[str]]) -> None:
    """The check itself."""
    assert not asked("rate(maple_nothing_total[5m])").metrics <= set(exposed)
    with pytest.raises(AssertionError, match="node_load1"):
        asked("node_load1 > 5")


def test_every_alert_says_what_to_do() -> None:
    """A name, a severity, a wait, a summary and a description."""
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_the_dashboard_can_be_imported() -> None:
    """Ids are unique, panels lie on a grid of 24, and the data source is chosen by whoever imports it."""
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])
    sources = {panel["datasource"]["uid"] for panel in board["panels"] if panel["type"] != "row"}
    assert sources == {"${datasource}"}
