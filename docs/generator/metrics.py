"""Regions of metrics.md: the metrics of runs. Airflow is not imported, so one table is read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from airflow_elastic.web.standalone.prometheus import GAUGES
from generator.markdown import code, table

SOURCE = Path(__file__).parents[2] / "airflow_elastic" / "triggers" / "metrics.py"


def described() -> Iterator[tuple[str, str, str, str]]:
    """Name, kind, unit and meaning of each metric that a controller sends through Airflow."""
    for node in ast.parse(SOURCE.read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "METRICS":
            assert isinstance(node.value, ast.Dict)
            for name, metric in zip(node.value.keys, node.value.values, strict=True):
                assert isinstance(metric, ast.Call)
                assert name is not None
                kind, unit, meaning = (ast.literal_eval(argument) for argument in metric.args)
                yield ast.literal_eval(name), kind, unit, meaning


def airflow_metrics() -> str:
    rows = ((code(name), kind, unit, meaning) for name, kind, unit, meaning in described())
    return table(("metric", "kind", "unit", "meaning"), rows)


def prometheus_metrics() -> str:
    rows = ((code(f"elastic_run_{name}"), gauge.meaning) for name, gauge in GAUGES.items())
    return table(("metric", "meaning"), rows)
