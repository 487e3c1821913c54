"""A trigger for an AssetWatcher that watches a folder of runs, and one that fires for every N-th checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.triggers import ElasticCheckpointEventTrigger
from airflow_elastic.triggers.assets import watcher
from airflow_elastic.triggers.assets.marks import REST_SECONDS, Mark, Pace, mark_of
from tests.support.models import a_run, saved
from tests.support.runs.triggerer import State, Triggerer


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "SETTLE_SECONDS", 0.0)


def begun(folder: Path, *steps: int) -> Store:
    """A run with checkpoints at these steps."""
    run = a_run(folder, {step: {} for step in steps})
    run.put(layout.journal_entry(0), b"{}")
    return run


def told(*triggerers: Triggerer) -> list[tuple[str, int]]:
    """The runs and steps of all events."""
    events = [event for one in triggerers for event in one.events]
    return sorted((Path(event["run_uri"]).name, event["step"]) for event in events)


async def test_all_runs_of_a_folder_once_each_also_over_a_restart(tmp_path: Path) -> None:
    old, live = begun(tmp_path / "train/old", 5), begun(tmp_path / "train/live", 10)
    trigger, state = ElasticCheckpointEventTrigger(runs_uri=str(tmp_path), poll_seconds=0.01), State()
    first = Triggerer(trigger, state)
    await first.until_noted([5, 10])
    saved(live, 20)
    mapped = begun(tmp_path / "train/new/0", 3)
    await first.until(2)
    await first.until_noted([3, 5, 20])
    await first.kill()
    assert told(first) == [("0", 3), ("live", 20)]
    begun(tmp_path / "train/while it was away", 7)
    saved(mapped, 6)
    second = Triggerer(trigger, state)
    await second.until(2)
    await second.until_noted([5, 6, 7, 20])
    saved(old, 8)  # it goes on
    await second.until_noted([6, 7, 8, 20])
    assert told(second) == [("0", 6), ("old", 8), ("while it was away", 7)]
    shutil.rmtree(old.uri)
    await second.until_noted([6, 7, 20])
    await second.kill()
    (noted,) = state.values()
    assert all(len(name) == 12 for name in noted), "the note stays small"


async def test_a_relative_folder_is_below_the_run_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ELASTIC__RUN_ROOT", str(tmp_path))
    watching = Triggerer(
        ElasticCheckpointEventTrigger(runs_uri="digits/train", existing=True, poll_seconds=0.01), State()
    )
    begun(tmp_path / "digits/train/one", 3)
    begun(tmp_path / "digits/another", 4)
    await watching.until(1)
    await watching.kill()
    assert told(watching) == [("one", 3)]


async def test_every_third_checkpoint_also_over_a_restart(tmp_path: Path) -> None:
    run, state = begun(tmp_path / "run"), State()
    trigger = ElasticCheckpointEventTrigger(run.uri, every=3, poll_seconds=0.01)
    first = Triggerer(trigger, state)
    await first.until_noted([-1])
    for step in (10, 20, 30, 40):
        saved(run, step)
    await first.until_noted([[40, 1]])
    await first.kill()
    for step in (50, 60):
        saved(run, step)
    second = Triggerer(trigger, state)
    await second.until_noted([60])
    await second.kill()
    assert told(first, second) == [("run", 30), ("run", 60)]


def test_what_is_watched_is_one_of_both() -> None:
    for both in ({}, {"run_uri": "/one", "runs_uri": "/all"}):
        with pytest.raises(SpecError, match="either `run_uri`, of one run, or `runs_uri`"):
            ElasticCheckpointEventTrigger(**both)
    with pytest.raises(SpecError, match="every: given 0; allowed: an integer, at least 1"):
        ElasticCheckpointEventTrigger("/one", every=0)


# -- the marks -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1000), unique=True), st.integers(1, 5), st.data())
def test_marks_count_alike_however_often_one_looks(numbers: list[int], every: int, data: Any) -> None:
    numbers.sort()
    mark, fired, seen = Mark(), [], 0
    while seen < len(numbers):
        seen = data.draw(st.integers(seen, len(numbers)).filter(lambda end, seen=seen: end > seen))
        passed = list(mark.passing(numbers[:seen], every))
        fired += [number for number, fires, _ in passed if fires]
        mark = passed[-1][2]
        assert mark_of(mark.plain()) == mark
    assert fired == numbers[every - 1 :: every]


@pytest.mark.parametrize("plain", [None, True, "7", [1], [1, "2"], {"a": 1}])
def test_what_is_no_mark(plain: Any) -> None:
    assert mark_of(plain) is None


@given(st.floats(1, 100), st.floats(0, 1e6))
def test_what_rests_is_looked_at_less_often_but_is_not_forgotten(poll: float, quiet: float) -> None:
    pace = Pace(poll, changed_at=0.0, looked_at=quiet)
    assert not pace.is_due(quiet + poll / 4)
    if quiet <= 10 * poll:
        assert pace.is_due(quiet + 1.2 * poll)
    assert pace.is_due(quiet + max(poll, REST_SECONDS))
    assert pace.is_due(quiet + max(poll, quiet / 5))
