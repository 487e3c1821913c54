"""What a chart gets of a history."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.history import TRAINING, read_history
from airflow_elastic.adapters.records.history.read import read_source
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.history import choose, conditions, heatmap, matrix, newest, select
from airflow_elastic.core.history.fold import counting, fold
from airflow_elastic.core.history.tables import TableBuilder
from airflow_elastic.spec.history import History, HistoryUnreadable, Part, decode_part, encode_part
from tests.support.histories import DAY, fill

NOW = 1_790_000_000.0


@pytest.fixture
def history(tmp_path: Path) -> History:
    store = open_store(str(tmp_path))
    fill(store, days=30, until=NOW, workers=3, ranks=6)
    return read_history(store, NOW)


def test_a_chart_has_at_most_so_many_points_and_one_list_of_times(history: History) -> None:
    for points in (1, 10, 500, 2000):
        chosen = select(history, ["loss", "metrics.*", "goodput"], points=points)
        assert set(chosen["series"]) == {"loss", "metrics.m0", "metrics.m1", "goodput"}
        times = {tuple(series["t"]) for series in chosen["series"].values()}
        assert len(times) == 1
        (t,) = times
        assert 0 < len(t) <= points
        assert list(t) == sorted(t)
        for series in chosen["series"].values():
            assert len(series["mean"]) == len(series["min"]) == len(series["max"]) == len(t)
        json.dumps(chosen, allow_nan=False)


def test_a_chart_shows_the_time_that_was_asked_for(history: History) -> None:
    chosen = select(history, ["step"], since=NOW - DAY, until=NOW - DAY / 2)
    t = chosen["series"]["step"]["t"]
    assert (chosen["from"], chosen["until"]) == (NOW - DAY, NOW - DAY / 2)
    assert NOW - DAY <= t[0] < NOW - DAY + 600
    assert NOW - DAY / 2 - 600 < t[-1] <= NOW - DAY / 2


def test_extremes_are_in_the_chart_however_few_its_points_are(history: History) -> None:
    column = history.training.table.columns["loss"]
    series = select(history, ["loss"], points=7)["series"]["loss"]
    assert min(series["min"]) == min(column.min)
    assert max(series["max"]) == max(column.max)


def test_numbers_that_json_does_not_have_are_words() -> None:
    table = TableBuilder()
    for i, loss in enumerate([1.0, math.nan, math.inf, -math.inf]):
        table.add(NOW + i, {"loss": loss, "step": i})
    series = select(History(NOW, Part(table=table.table)))["series"]["loss"]
    assert series["mean"] == [1.0, "NaN", "Infinity", "-Infinity"]


def test_an_empty_history_has_no_series(tmp_path: Path) -> None:
    history = read_history(open_store(str(tmp_path)), NOW)
    assert select(history) == {"at": NOW, "from": NOW, "until": NOW, "names": [], "series": {}}
    assert heatmap(history) == {"of": "step", "t": [], "ranks": [], "rows": [], "p50": None, "p99": None}
    assert conditions(history) == []
    assert newest(history) == {}


def test_a_heat_map_has_a_row_for_each_rank(history: History) -> None:
    found = heatmap(history, columns=100)
    assert found["ranks"] == [0, 1, 2, 3, 4, 5]
    assert 0 < len(found["t"]) <= 100
    assert {len(row) for row in found["rows"]} == {len(found["t"])}
    assert found["p50"] == pytest.approx(0.25, abs=0.02)
    assert found["p99"] == pytest.approx(0.6, abs=0.05)  # the last rank is slow in the last attempt


def test_a_matrix_has_a_row_for_each_worker(history: History) -> None:
    found = matrix(history, "cpu", since=NOW - 3600.0)
    assert found["rows"] == ["node-0", "node-1", "node-2"]
    assert all(mean <= high for mean, high in zip(found["mean"][0], found["max"][0], strict=True))


def test_an_open_condition_has_no_end(history: History) -> None:
    *others, last = conditions(history)
    assert all(one["until"] is not None for one in others)
    assert (last["kind"], last["until"], last["ranks"]) == ("straggler", None, [7])
    later = conditions(replace(history, at=NOW + 3600.0))
    assert later[-1]["until"] == NOW, "nobody has seen it for an hour"


def test_a_part_survives_being_stored(history: History) -> None:
    for part in (history.training, history.controller):
        assert encode_part(decode_part(encode_part(part))) == encode_part(part)


def test_a_damaged_part_is_refused(history: History) -> None:
    data = encode_part(history.controller)
    for damaged in (b"", data[:10], data[:-100], b"x" + data, data[:200] + b"0000" + data[204:]):
        with pytest.raises(HistoryUnreadable):
            decode_part(damaged)


@pytest.mark.parametrize("points", [10, 500])
def test_a_chart_of_parts_shows_the_same_as_one_of_the_whole(points: int, tmp_path: Path) -> None:
    """The buckets may differ, but no least and no greatest value is lost, and the time is the same."""
    store = open_store(str(tmp_path))
    fill(store, days=30, until=NOW)
    stored = read_source(store, TRAINING)
    parts = counting(stored.archive, list(stored.recent.values()))
    names = ["loss", "step"]
    found = choose([part.table for part in parts], NOW, names, None, None, points)
    whole = select(History(NOW, fold(stored.archive, list(stored.recent.values()))), names, points=points)
    assert 0 < len(found["series"]["loss"]["t"]) <= points
    assert found["from"] == whole["from"]
    for name in names:
        mine, other = found["series"][name], whole["series"][name]
        assert min(mine["min"]) == min(other["min"])
        assert max(mine["max"]) == max(other["max"])
        assert statistics.fmean(mine["mean"]) == pytest.approx(statistics.fmean(other["mean"]), rel=0.02)
