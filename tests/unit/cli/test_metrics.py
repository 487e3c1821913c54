"""`airflow-elastic metrics`, on a run whose history is long, hostile or not there."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.inspect.line_charts import chart, sparkline
from airflow_elastic.cli.inspect.metrics import metrics
from airflow_elastic.control import start_run
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import spec
from tests.support.histories import fill


@pytest.fixture
def run(tmp_path: Path) -> str:
    store = open_store(str(tmp_path / "run"))
    start_run(store, spec(engine="fake"), engine=FakeEngine())
    fill(store, days=3, workers=2, ranks=2, attempts=2)
    return store.uri


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(metrics, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_table_has_a_line_for_each_series(run: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal only the charts are shorter."""
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = call(run).stdout
    for name in ("step", "loss", "metrics.m1", "goodput", "seconds.training"):
        assert any(line.startswith(f"{name} ") for line in shown.splitlines()), name
    assert "█" in shown


def test_one_series_has_a_larger_chart(run: str) -> None:
    lines = call(run, "--name", "loss", "--since", "2d").stdout.splitlines()
    assert len(lines) == 12 + 1 + 2


def test_json_is_what_the_page_gets(run: str) -> None:
    chosen = json.loads(call(run, "--json", "--name", "metrics.*", "--points", 50).stdout)
    assert set(chosen["series"]) == {"metrics.m0", "metrics.m1"}
    assert len(chosen["series"]["metrics.m0"]["t"]) <= 50


def test_csv_has_a_line_for_each_time_and_series(run: str) -> None:
    rows = list(csv.DictReader(io.StringIO(call(run, "--csv", "--name", "loss", "--name", "step").stdout)))
    assert {row["series"] for row in rows} == {"loss", "step"}
    assert all(float(row["min"]) <= float(row["mean"]) <= float(row["max"]) for row in rows)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--name", "los"), "no series matches los; there are: attempt, epoch"),
        (("--since", "soon"), "give a time ago such as 30m, 2h or 1d, or a moment such as"),
        (("--json", "--csv"), "exclude each other"),
    ],
)
def test_bad_input_is_told(run: str, words: tuple[str, ...], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        call(run, *words)


def test_a_run_without_a_history_says_so(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    start_run(store, spec(engine="fake"), engine=FakeEngine())
    assert "no history yet" in call(store.uri).stdout
    assert json.loads(call(store.uri, "--json").stdout)["series"] == {}


def test_blocks_rise_with_the_values() -> None:
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, None, math.nan, 7.0], 8) == "▁ !█"
    assert sparkline([0.0, 7.0], 8, ascii_only=True) == "_@"
    assert sparkline([5.0, 5.0], 8) == "▄▄"
    assert sparkline([], 8) == ""


@given(
    values=st.lists(st.none() | st.floats(), max_size=300),
    width=st.integers(1, 120),
    height=st.integers(1, 12),
    ascii_only=st.booleans(),
)
def test_a_chart_fits_whatever_the_values(
    values: list[float | None], width: int, height: int, ascii_only: bool
) -> None:
    lines = chart(values, width, height, ascii_only=ascii_only)
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    assert not ascii_only or all(line.isascii() for line in lines)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 200), st.integers(1, 60))
def test_a_constant_is_a_straight_line(value: float, count: int, width: int) -> None:
    """Seen before: the rounding of means was drawn as a curve."""
    assert len({*sparkline([value] * count, width)}) == 1
