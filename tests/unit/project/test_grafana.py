"""The dashboards in examples/grafana: each metric that they ask for is one that we send, and none is missing."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.web.standalone.prometheus import GAUGES

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "grafana"
BOARDS = sorted(FOLDER.glob("*.json"))

#: What Prometheus gets of a metric, beside its own name: of counters, and of timers.
SUFFIXES = {"counter": ("", "_total"), "timer": ("_sum", "_count"), "gauge": ("",)}


def board(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def expressions(name: str) -> Iterator[str]:
    made = board(name)
    for panel in made["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in made["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


def asked(name: str) -> set[str]:
    """Names of metrics; `x(_total)?` stands for two."""
    found = set()
    for expression in expressions(name):
        text = re.sub(r"(\w+)\(_total\)\?", r"\1 \1_total", expression)
        found |= set(re.findall(r"\b(?:airflow_)?elastic_runs?\w*|\bairflow_elastic_\w+", text))
    return found


@pytest.fixture(scope="module")
def described() -> Iterator[dict[str, str]]:
    """The kind of each metric that is sent through Airflow."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        metrics = importlib.import_module("generator.metrics")
        yield {name: kind for name, kind, _, _ in metrics.described()}
    finally:
        sys.path.remove(str(ROOT / "docs"))


def test_the_dashboard_of_airflow_asks_for_all_metrics_that_are_sent(described: dict[str, str]) -> None:
    sent = {
        f"airflow_{name.replace('.', '_')}{suffix}"
        for name, kind in described.items()
        for suffix in SUFFIXES[kind]
    }
    assert asked("airflow.json") == sent


def test_the_dashboard_of_the_server_asks_for_all_metrics_that_it_has() -> None:
    assert asked("ui.json") == {"elastic_runs", *(f"elastic_run_{name}" for name in GAUGES)}


@pytest.mark.parametrize("name", [path.name for path in BOARDS])
def test_panels_lie_beside_each_other(name: str) -> None:
    made = board(name)
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in made["panels"]):
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.parametrize("name", [path.name for path in BOARDS])
def test_variables_and_units_are_grafanas(name: str) -> None:
    made = board(name)
    variables = {variable["name"] for variable in made["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(made))) - {"__rate_interval", "__all"}
    assert used <= variables
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in made["panels"]} <= {
        "short",
        "s",
        "none",
        "percentunit",
    }
