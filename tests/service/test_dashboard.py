"""The dashboard asks for metrics that the service exports, by labels that they have."""

import json
import re
from pathlib import Path
from typing import Any

from lastword.service.metrics import Metrics

FILE = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboard.json"
BOARD = json.loads(FILE.read_text(encoding="utf-8"))
# What Prometheus itself adds to whatever it scrapes, and to the buckets of a histogram.
GIVEN = {"job", "instance", "le"}


def exported() -> dict[str, set[str]]:
    """Labels of every sample that a scrape may have, by its name."""
    names: dict[str, set[str]] = {}
    metrics: list[Any] = [*Metrics().registry._collector_to_names]
    for metric in metrics:
        labels = set(metric._labelnames)
        (kind,) = metric.describe()
        for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(
            kind.type, [""]
        ):
            names[kind.name + suffix] = labels
    return names


def queries() -> list[str]:
    asked = [t["expr"] for panel in BOARD["panels"] for t in panel.get("targets", [])]
    return asked + [v["query"] for v in BOARD["templating"]["list"] if v["type"] == "query"]


def test_every_metric_of_the_dashboard_is_exported():
    names, asked = exported(), set(re.findall(r"lastword_\w+", " ".join(queries())))
    assert len(asked) > 15
    assert sorted(asked - names.keys()) == []


def test_the_page_lists_every_metric_with_its_labels():
    lines = (FILE.parents[2] / "docs" / "service.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    told = {row[0]: row[2] for row in cells if row and row[0].startswith("`lastword_")}
    known = {
        f"`{re.sub('_(bucket|sum|count)$', '', name)}`": labels
        for name, labels in exported().items()
    }
    assert {name: set(re.findall(r"\w+", labels)) for name, labels in told.items()} == known


def test_every_label_that_it_groups_or_filters_by_is_the_metrics_own():
    names = exported()
    for query in queries():
        known = GIVEN.union(*(names[n] for n in re.findall(r"lastword_\w+", query)))
        grouped = [g.split(",") for g in re.findall(r"by \(([^)]*)\)", query)]
        used = {label.strip() for group in grouped for label in group}
        used |= set(re.findall(r"(\w+)=~?\"", query))
        assert used <= known, query
