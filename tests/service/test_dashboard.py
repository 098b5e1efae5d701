"""The dashboard uses only metrics and labels that the service exports."""

import json
import re
from pathlib import Path
from typing import Any

from lastword.service.metrics import Metrics

FILE = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboard.json"
BOARD = json.loads(FILE.read_text(encoding="utf-8"))
# Prometheus adds these to everything that it scrapes, and to the buckets of a histogram.
PROMETHEUS_LABELS = {"job", "instance", "le"}
SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}


def exported() -> dict[str, set[str]]:
    """Return the labels of every exported sample, by its name."""
    names: dict[str, set[str]] = {}
    metrics: list[Any] = [*Metrics().registry._collector_to_names]
    for metric in metrics:
        labels = set(metric._labelnames)
        (kind,) = metric.describe()
        for suffix in SUFFIXES.get(kind.type, [""]):
            names[kind.name + suffix] = labels
    return names


def queries() -> list[str]:
    panels = [t["expr"] for panel in BOARD["panels"] for t in panel.get("targets", [])]
    return panels + [v["query"] for v in BOARD["templating"]["list"] if v["type"] == "query"]


def test_every_metric_of_the_dashboard_is_exported():
    names, used = exported(), set(re.findall(r"lastword_\w+", " ".join(queries())))
    assert len(used) > 15
    assert sorted(used - names.keys()) == []


def test_the_page_lists_every_metric_with_its_labels():
    lines = (FILE.parents[2] / "docs" / "service.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    documented = {row[0]: row[2] for row in cells if row and row[0].startswith("`lastword_")}
    expected = {
        f"`{re.sub('_(bucket|sum|count)$', '', name)}`": labels
        for name, labels in exported().items()
    }
    assert {
        name: set(re.findall(r"\w+", labels)) for name, labels in documented.items()
    } == expected


def test_every_label_that_groups_or_filters_belongs_to_its_metric():
    names = exported()
    for query in queries():
        allowed = PROMETHEUS_LABELS.union(*(names[n] for n in re.findall(r"lastword_\w+", query)))
        grouped = [g.split(",") for g in re.findall(r"by \(([^)]*)\)", query)]
        used = {label.strip() for group in grouped for label in group}
        used |= set(re.findall(r"(\w+)=~?\"", query))
        assert used <= allowed, query
