"""ElasticEvaluateOperator without Airflow's services: what it skips, runs and returns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.reports import write_progress
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import Run
from airflow_elastic.operators import ElasticEvaluateOperator
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import SpecError
from tests.support.models import a_run
from tests.support.runs.surface import FakeHook, FakeTask
from tests.support.runs.watched import trained


def evaluate_task(source: Any, **options: Any) -> ElasticEvaluateOperator:
    return ElasticEvaluateOperator(
        task_id="new", command=["evaluate.py"], launcher="python", engine="fake", source=source, **options
    )


def context(task: Any, ti: FakeTask) -> Any:
    return {"ti": ti, "task": task, "outlet_events": OutletEventAccessors()}


def ended(uri: str, outcome: str = "succeeded", **metrics: float) -> None:
    """The run ends as a controller has it."""
    store = open_store(uri)
    journal = Journal(store)
    write_progress(store, trained(1, metrics=metrics))
    journal.append(len(journal.read()), ev.AttemptSubmitted(1.0, 1, "job"))
    journal.append(len(journal.read()), ev.RunEnded(2.0, outcome, "as this test has it"))


def test_the_checkpoint_is_pinned_until_its_metrics_are_there(hook: FakeHook, tmp_path: Path) -> None:
    run = a_run(tmp_path / "source", {10: {"loss": 0.5}, 20: {"loss": 0.4}})
    asset = Asset("measured")
    task = evaluate_task(run.uri, step="10", run_uri=str(tmp_path / "evaluation"), outlets=[asset])
    ti = FakeTask(task_id="new")
    told = context(task, ti)
    with pytest.raises(TaskDeferred):
        task.execute(told)
    uri = ti.xcoms["run_uri"]
    state = Run(open_store(uri)).state
    assert state.spec.evaluation
    assert state.origin is not None
    assert (state.origin.run, state.origin.step) == (run.uri, 10)
    assert list(checkpoint_retention.pins(run)) == [10]
    ended(uri, accuracy=0.9)
    result = task.resume(told, {}, run_uri=uri)
    assert result == {
        "metrics": {"accuracy": 0.9},
        "source": run.uri,
        "step": 10,
        "promotion": None,
        "run_uri": uri,
    }
    extra = told["outlet_events"][asset].extra
    assert (extra["run_uri"], extra["metrics"], extra["world_size"]) == (uri, {"accuracy": 0.9}, 2)
    assert checkpoint_retention.pins(run) == {}
    assert checkpoint_retention.measured(run, checkpoints.read(run, 10)) == {"loss": 0.5, "accuracy": 0.9}


def test_a_failure_for_good_lets_the_checkpoint_go(hook: FakeHook, tmp_path: Path) -> None:
    run = a_run(tmp_path / "source", {10: {}})
    task, ti = (
        evaluate_task(run.uri, run_uri=str(tmp_path / "evaluation")),
        FakeTask(task_id="new", max_tries=1),
    )
    told = context(task, ti)
    with pytest.raises(TaskDeferred):
        task.execute(told)
    ended(ti.xcoms["run_uri"], "failed")
    for number, pinned in ((1, [10]), (2, [])):
        ti.try_number = number
        with pytest.raises(Exception, match="failed: as this test has it"):
            task.resume(told, {}, run_uri=ti.xcoms["run_uri"])
        assert list(checkpoint_retention.pins(run)) == pinned


def test_nothing_to_evaluate(hook: FakeHook, tmp_path: Path) -> None:
    for source in (None, "None"):
        task = evaluate_task("{{ of another task }}")
        task.source = source  # type: ignore[assignment]
        with pytest.raises(AirflowSkipException, match=f"source is {source!r}"):
            task.execute(context(task, FakeTask()))
    nothing = str(tmp_path / "nothing")
    optional = evaluate_task(nothing, optional=True)
    with pytest.raises(AirflowSkipException, match="has no checkpoint or promoted model yet"):
        optional.execute(context(optional, FakeTask()))
    gone = evaluate_task(a_run(tmp_path / "run", {10: {}}).uri, optional=True, step=5)
    with pytest.raises(AirflowSkipException, match="step 5 has no committed checkpoint; there are: 10"):
        gone.execute(context(gone, FakeTask()))
    wanted = evaluate_task(nothing)
    with pytest.raises(AirflowFailException, match="start_from"):
        wanted.execute(context(wanted, FakeTask()))
    assert not (tmp_path / "nothing").exists()


def test_bad_arguments() -> None:
    with pytest.raises(SpecError, match="workers"):
        evaluate_task("/runs/one", workers=0)
    with pytest.raises(
        SpecError, match=r"new\.start_from: given '/x'; allowed: none: source, step and best say"
    ):
        evaluate_task("/runs/one", start_from="/x")
    for bad, said in (
        ({"step": "seven"}, "new.step: given 'seven'; allowed: an integer, at least 0"),
        ({"best": "accuracy"}, "new.best: given 'accuracy'; allowed: `min` or `max`"),
        ({"step": 5, "best": "max accuracy"}, "new.best: given 'max accuracy'; allowed: none with `step`"),
    ):
        with pytest.raises(SpecError, match=re.escape(said)):
            evaluate_task("/runs/one", **bad)
    with pytest.raises(SpecError, match=r"new\.source: given 'runs/one'; allowed: an absolute path"):
        evaluate_task("runs/one")
    task = evaluate_task("/runs/one", step="{{ 'seven' }}")
    task.step = "seven"
    with pytest.raises(AirflowFailException, match="step: given 'seven'; allowed: an integer, at least 0"):
        task._start()
