"""Operators that ask something of a run: which run that is, and what happens if there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.control.runs import open_run
from airflow_elastic.core.conditions import AtSize, OutOfReach
from airflow_elastic.core.conditions.look import Look
from airflow_elastic.operators import (
    ElasticCheckpointOperator,
    ElasticScaleOperator,
    ElasticStopOperator,
    ElasticTrainOperator,
)
from airflow_elastic.operators.task.attach import acknowledge, attach
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec, Workers
from tests.support.runs.surface import FakeHook, FakeTask, begun, ended, operator

ELASTIC = RunSpec(("/train.py",), engine="fake", launcher="python", workers=Workers(2, 1, 4))


def scale(uri: object, **more: Any) -> ElasticScaleOperator:
    return ElasticScaleOperator(task_id="scale", run_uri=str(uri), workers=1, **more)


def context() -> Any:
    return {"ti": FakeTask(task_id="scale")}


@pytest.mark.parametrize("made", [ElasticScaleOperator, ElasticCheckpointOperator, ElasticStopOperator])
def test_without_a_run_the_task_is_skipped_if_that_is_allowed(made: Any, tmp_path: Path) -> None:
    needs = {"workers": 1} if made is ElasticScaleOperator else {}
    for rendered in (str(tmp_path / "none"), "None"):
        for optional, error in ((True, AirflowSkipException), (False, AirflowException)):
            task = made(task_id="end", run_uri="{{ uri }}", optional=optional, **needs)
            task.run_uri = rendered
            with pytest.raises(error, match=r"no run|pushed none"):
                task.execute(context())


@pytest.mark.parametrize(
    ("made", "needs", "verb"),
    [(ElasticScaleOperator, {"workers": 1}, "scaled"), (ElasticCheckpointOperator, {}, "saved")],
)
def test_of_a_run_that_has_ended_nothing_is_asked(
    made: Any, needs: dict[str, Any], verb: str, hook: FakeHook, tmp_path: Path
) -> None:
    ended(begun(hook, tmp_path / "r", spec=ELASTIC), "stopped")
    for optional, error, text in (
        (True, AirflowSkipException, "has ended"),
        (False, AirflowException, f"cannot be {verb} any more"),
    ):
        with pytest.raises(error, match=text):
            made(task_id="ask", run_uri=str(tmp_path / "r"), optional=optional, **needs).execute(context())


def test_the_end_of_the_run_skips_an_optional_scale_step_and_another_wish_fails_it(tmp_path: Path) -> None:
    for optional, event, error in (
        (True, True, AirflowSkipException),
        (False, True, AirflowException),
        (True, False, AirflowException),
    ):
        with pytest.raises(AirflowException) as raised:
            scale(tmp_path, optional=optional).resume(context(), {"error": "too late", "ended": event})
        assert type(raised.value) is error


def test_who_asks_for_another_number_overrules(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path / "r", spec=ELASTIC)
    now: Any = run.status()
    with pytest.raises(OutOfReach) as overruled:
        AtSize(1).judge(Look({**now, "target_workers": 4}, 2.0), Look({**now, "target_workers": 1}, 1.0))
    assert not overruled.value.ended


def test_the_run_of_a_task_that_trains_again_is_beside_the_first(hook: FakeHook, tmp_path: Path) -> None:
    uri = str(tmp_path / "r")
    acknowledge(ended(attach(hook, uri, ELASTIC, "try-1"), "succeeded"), "try-1")
    second = attach(hook, uri, ELASTIC, "try-2")
    with pytest.raises(TaskDeferred) as deferred:
        scale(uri).execute(context())
    assert deferred.value.trigger.serialize()[1]["run_uri"] == second.store.uri == f"{uri}~2"
    (asked,) = Mailbox(second.store).read()
    assert (asked.kind, asked.workers) == ("scale", 1)
    assert scale(uri, wait=False).execute(context())["run_uri"] == second.store.uri


def test_a_stopped_run_queues_its_task_again_if_it_gives_way(hook: FakeHook, tmp_path: Path) -> None:
    def end(outcome: str, **options: Any) -> ElasticTrainOperator:
        made = operator(engine="fake", run_uri=str(tmp_path / outcome), **options)
        with pytest.raises(TaskDeferred):
            made.execute({"ti": FakeTask()})
        ended(open_run(str(tmp_path / outcome)), outcome)
        return made

    stopped = end("stopped", requeue_on_stop=True)
    for _ in range(2):
        with pytest.raises(AirflowRescheduleException):
            stopped.resume({"ti": FakeTask()}, {}, str(tmp_path / "stopped"))
    with pytest.raises(TaskDeferred):  # in the queue it is the same try, and the run goes on
        stopped.execute({"ti": FakeTask()})
    events = Journal(hook.open_store(str(tmp_path / "stopped"))).read()
    assert type(events[-1]).__name__ == "RunReopened"
    with pytest.raises(SpecError, match="requeue_on_stop: given True; allowed: False"):
        operator(requeue_on_stop=True, skip_on_stop=True)
    failed = end("failed", requeue_on_stop=True)
    with pytest.raises(AirflowException, match="failed: because"):
        failed.resume({"ti": FakeTask()}, {}, str(tmp_path / "failed"))
