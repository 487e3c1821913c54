"""The operator on a real Airflow: everything that only a real one can prove.

Runs that do not get into each other's way go on at the same time, started by the fixture `batch`: most of their time
is waiting.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_elastic.core.state import Cause
from airflow_elastic.testing import processes
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.machine.standstill import stand_still
from tests.support.machine.tries import FOREVER, TASK, TICKS, Try


@pytest.fixture(scope="module")
def batch(start: Callable[..., Try], standalone: Standalone) -> dict[str, Try]:
    """Runs that go on at the same time."""
    uri = f"{standalone.environment['AIRFLOW__ELASTIC__PAGE_ROOTS']}/shared run"
    steered = f"{standalone.environment['AIRFLOW__ELASTIC__PAGE_ROOTS']}/of another DAG"
    return {
        "long": start("elastic_long", run_uri=steered),
        "steered": start("elastic_steered", run_uri=steered),
        "success": start("elastic_train", run_uri=uri, steps=120),
        "sensor": start("elastic_sensor", run_uri=uri),
        "error": start("elastic_error"),
        "mapped": start("elastic_mapped"),
        "deadline": start("elastic_deadline", seconds=FOREVER),
        "unlucky": start("elastic_unlucky", seconds=1),
        "taskflow": start("elastic_taskflow"),
        "poison": start("elastic_poison", seconds=1),
    }


# -- success -----------------------------------------------------------------------------------------------------


def test_a_success_hands_on_its_checkpoint_and_metrics(batch: dict[str, Try]) -> None:
    done = batch["success"]
    done.wait("success")
    result = done.xcom("return_value")
    assert result["run_uri"] == done.xcom("run_uri") == done.uri
    assert (result["step"], result["attempts"]) == (120, 1)
    assert done.xcom("checkpoint") == result["checkpoint"]
    assert result["checkpoint"]["step"] == 120
    assert Path(result["checkpoint"]["manifest"]).is_file()
    assert Path(result["checkpoint"]["data"]).is_dir()
    assert done.xcom("metrics").keys() == {"loss"}
    assert done.number() == 1
    log = done.log()
    assert "attempt 1 submitted: 2 workers, from the beginning" in log
    assert "[rank 0] training from step 0 on 2 ranks" in log
    assert f"the run {done.uri} has succeeded at step 120" in log
    assert done.xcom("progress")["world_size"] == 2
    done.wait_gone()


def test_the_button_leads_to_a_page_that_only_readers_of_the_task_see(batch: dict[str, Try]) -> None:
    done = batch["success"]
    done.wait("success")
    airflow = done.airflow
    links = airflow.rest("GET", f"dags/{done.dag}/dagRuns/{done.run_id}/taskInstances/{TASK}/links")
    page = f"/dags/{done.dag}/runs/{done.run_id.replace(':', '%3A').replace('+', '%2B')}/tasks/{TASK}/plugin/training"
    assert links["extra_links"]["Elastic run"].removeprefix(airflow.url) == page
    path = f"/elastic/runs/{done.dag}/{done.run_id.replace('+', '%2B')}/{TASK}"
    moved = airflow.request("GET", path)
    assert moved.status_code == 307
    assert moved.headers["location"].removeprefix(airflow.url) == page
    status = airflow.rest("GET", f"{path}?format=json")
    assert status["outcome"] == "succeeded"
    assert [attempt["cause"] for attempt in status["attempts"]] == ["succeeded"]
    for anonymous in (path, f"{path}?format=json"):
        assert httpx.get(airflow.url + anonymous).status_code == 401
    assert httpx.get(f"{airflow.url}/elastic/openapi.json").status_code in (401, 404)
    assert airflow.request("GET", path.replace(TASK, "nonesuch")).status_code == 404
    # The run is the task instance's own: a run URI in the request is not looked at.
    assert airflow.rest("GET", f"{path}?format=json&run_uri=/etc")["run"]["uri"] == done.uri


def test_the_sensor_follows_a_run_from_another_dag(batch: dict[str, Try]) -> None:
    airflow, run_id = batch["sensor"].airflow, batch["sensor"].run_id
    for name in ("step", "checkpoint"):
        airflow.wait_task("elastic_sensor", run_id, name)
    assert airflow.xcom("elastic_sensor", run_id, "step")["step"] >= 30
    assert airflow.xcom("elastic_sensor", run_id, "checkpoint")["checkpoint"] >= 20
    airflow.wait_task("elastic_sensor", run_id, "never", "failed")
    log = airflow.task_log("elastic_sensor", run_id, "never")
    assert "it does not reach step 1000000 any more" in log


def test_tasks_of_another_dag_watch_and_steer_a_run(batch: dict[str, Try], standalone: Standalone) -> None:
    dag, run_id = "elastic_steered", batch["steered"].run_id
    standalone.wait_task(dag, run_id, "beyond", "failed")
    assert "workers: given 7; allowed: " in standalone.task_log(dag, run_id, "beyond")
    for name in ("good", "scale", "save", "shrink", "prune", "stop", "again", "still", "room"):
        standalone.wait_task(dag, run_id, name)
    good, save = (standalone.xcom(dag, run_id, name) for name in ("good", "save"))
    assert good["metrics"]["loss"] < 1000
    assert good["checkpoint"] >= 20
    assert save["checkpoint"] >= good["checkpoint"]
    assert [standalone.xcom(dag, run_id, name)["workers"] for name in ("scale", "shrink")] == [3, 2]
    assert standalone.xcom(dag, run_id, "prune")["removed"]
    assert standalone.xcom(dag, run_id, "stop")["state"] == "stopped"
    assert standalone.xcom(dag, run_id, "again")["state"] == "stopped"
    assert standalone.xcom(dag, run_id, "room")["workers"] >= 2
    (alarm,) = standalone.xcom(dag, run_id, "still")["alarms"]
    assert alarm["alarm"] == "no_progress"
    # A run that ends well, or is stopped, leaves nothing to alarm about.
    standalone.wait_task(dag, run_id, "unsaved", "skipped")
    standalone.wait_task(dag, run_id, "no_room", "skipped")
    assert "room for 0 of 1 workers: 0 by memory" in standalone.task_log(dag, run_id, "no_room")
    batch["long"].wait("failed")


def test_callbacks_are_told_while_the_task_is_deferred(batch: dict[str, Try], standalone: Standalone) -> None:
    """With Airflow's own alert beside them: the DAG run is late, and its training goes on."""
    batch["long"].wait("failed")  # it was stopped
    lines = [json.loads(line) for line in (standalone.home / "callbacks.jsonl").read_text().splitlines()]
    own = [line for line in lines if line.get("run") == batch["long"].run_id]
    scaled = [line for line in own if line["by"] == "plain" and line["kind"] == "scale"]
    assert [line["workers"] for line in scaled] == [3, 2]
    assert [line["text"] for line in own if line["by"] == "letter"] == ["3 workers", "2 workers"]
    saved = [line["step"] for line in own if line["by"] == "checkpoint"]
    assert saved == sorted(set(saved))
    assert len(saved) > 2
    assert any(line["by"] == "deadline" for line in lines)


def test_mapped_instances_have_a_run_each(batch: dict[str, Try]) -> None:
    one, two = (Try(batch["mapped"].airflow, "elastic_mapped", batch["mapped"].run_id, i) for i in (0, 1))
    one.wait("success")
    two.wait("success")
    assert one.uri != two.uri
    assert (Path(one.uri).name, Path(two.uri).name) == ("0", "1")
    assert len(one.ticks()) < len(two.ticks())
    assert one.ticks()[0][1] != two.ticks()[0][1]


def test_a_backfill_trains_once_for_each_day(standalone: Standalone) -> None:
    dag = "elastic_partitions"
    standalone.wait_for_dag(dag)
    days = {"from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-03T00:00:00Z"}
    standalone.rest("POST", "backfills", json={"dag_id": dag, **days, "max_active_runs": 2})

    def made() -> list[str] | None:
        runs = standalone.rest("GET", f"dags/{dag}/dagRuns", params={"run_type": "backfill"})["dag_runs"]
        return [run["dag_run_id"] for run in runs] if len(runs) == 3 else None

    run_ids = poll("the runs of the backfill", made, timeout=PATIENCE_SECONDS)
    for run_id in run_ids:
        standalone.wait_task(dag, run_id, TASK)
    specs = [Try(standalone, dag, run_id).run().spec for run_id in run_ids]
    days_of = sorted(
        word.removeprefix("--until=") for spec in specs for word in spec.command if "until" in word
    )
    assert days_of == ["2026-01-01", "2026-01-02", "2026-01-03"]


def test_a_function_says_what_to_train(batch: dict[str, Try]) -> None:
    batch["taskflow"].wait("success")
    assert "[rank 0] all ticks done" in batch["taskflow"].log()


# -- failure -----------------------------------------------------------------------------------------------------


def test_a_code_error_fails_the_task_with_its_traceback_and_without_more_tries(batch: dict[str, Try]) -> None:
    """Without AirflowFailException all four tries would meet the same error, two attempts each."""
    failed = batch["error"]
    failed.wait("failed")
    log = failed.log()
    assert "ValueError: on purpose, at tick 3" in log
    assert "Traceback (most recent call last)" in log
    assert "raise ValueError(" in log
    assert failed.number() == 1
    assert len(failed.run().attempts) == 2
    failed.wait_gone()


def test_a_deadline_ends_a_deferred_task_and_its_training(batch: dict[str, Try]) -> None:
    """Without the run's own deadline it would train on: execution_timeout does not count while deferred."""
    late = batch["deadline"]
    late.wait("failed")
    assert "the active deadline of 12 s has passed" in late.log()
    state = late.run()
    assert state.outcome == "failed"
    assert state.attempt.cause is Cause.DEADLINE
    assert state.attempt.ended_at - state.opened_at >= 12.0
    late.wait_gone()


def test_a_spurious_failure_does_not_train_again(batch: dict[str, Try]) -> None:
    """Without looking at the run first, the second try would train a second time."""
    unlucky = batch["unlucky"]
    unlucky.wait("success")
    assert unlucky.number() == 2
    assert "has ended before: succeeded" in unlucky.log()
    assert len(unlucky.run().attempts) == 1


def test_a_poisonous_trigger_is_refused_before_the_deferral(batch: dict[str, Try]) -> None:
    """Without the check the triggerer dies, and every one after it: nothing that is deferred ever goes on."""
    poison = batch["poison"]
    before = poison.airflow.triggerer_pids()
    poison.wait("failed")
    assert "poll_seconds: Decimal('0.5') is a Decimal" in poison.log()
    assert poison.airflow.triggerer_pids() == before
    assert poison.processes() == []


def test_clearing_a_success_trains_anew_beside_it(batch: dict[str, Try]) -> None:
    again = batch["taskflow"]
    again.wait("success")
    first = again.uri
    again.clear()
    again.airflow.wait_run(again.dag, again.run_id)
    assert again.number() == 2
    assert again.uri == f"{first}~2"
    assert "all ticks done" in again.log()


# -- while deferred ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deferred(start: Callable[..., Try], signs: Path) -> dict[str, Try]:
    """Runs that train until somebody does something to their task."""
    return {
        "doomed": start("elastic_tick", seconds=FOREVER),
        "cleared": start("elastic_tick", seconds=FOREVER, until=str(signs / "cleared")),
        "paused": start("elastic_tick", seconds=FOREVER),
    }


def test_marking_failed_ends_the_training(deferred: dict[str, Try]) -> None:
    """Without on_kill it would train on with nobody watching. Rank 0's lines come while the task is deferred."""
    doomed = deferred["doomed"]
    doomed.wait("deferred")
    doomed.wait_ticks(3)
    poll(
        "live lines",
        lambda: "[rank 0] tick 3 of" in doomed.log() or None,
        timeout=PATIENCE_SECONDS,
        hint=doomed.log,
    )
    assert doomed.state() == "deferred"
    assert doomed.processes()
    doomed.mark("failed")
    doomed.wait_gone()
    state = doomed.wait_ended()
    assert (state.outcome, state.reason) == ("stopped", "stopped by Airflow: the task is failed")


def test_a_cleared_task_takes_its_run_over_and_training_never_stops(
    deferred: dict[str, Try], signs: Path
) -> None:
    """Without the owner, the first try's on_kill, which comes after the second try has begun, would end it."""
    cleared = deferred["cleared"]
    cleared.wait("deferred")
    process = cleared.wait_ticks(3)
    owner = cleared.run().owner
    cleared.clear()
    poll("the new try to own the run", lambda: cleared.run().owner != owner or None, timeout=PATIENCE_SECONDS)
    assert cleared.number() == 2
    # Before training may end: a trigger whose run has ended fires, and there is nothing left to cancel.
    poll(
        "the first try's on_kill",
        lambda: "invoking on_kill" in cleared.log(1) or None,
        timeout=PATIENCE_SECONDS,
        hint=lambda: cleared.log(1),
    )
    (signs / "cleared").touch()
    cleared.wait("success")
    assert "is taken over: running, attempt 1" in cleared.log()
    assert {pid for _, pid in cleared.ticks()} == {process}
    assert len(cleared.run().attempts) == 1
    cleared.wait_gone()


def test_a_task_cleared_in_a_paused_dag_is_driven_on_and_one_of_a_failed_dag_run_ends(
    deferred: dict[str, Try],
) -> None:
    """While its DAG is paused a cleared task keeps its trigger; the new try takes the run over from it."""
    paused = deferred["paused"]
    paused.wait("deferred")
    process = paused.wait_ticks(1)
    paused.airflow.rest("PATCH", f"dags/{paused.dag}", json={"is_paused": True})
    owner = paused.run().owner
    try:
        paused.clear()
        status = Path(paused.uri) / "status.json"
        seen = status.stat().st_mtime
        poll(
            "its controller to be at work",
            lambda: status.stat().st_mtime > seen + 2 or None,
            timeout=PATIENCE_SECONDS,
        )
        assert paused.run().owner == owner
    finally:
        paused.airflow.unpause(paused.dag)
    poll("the new try to own the run", lambda: paused.run().owner != owner or None, timeout=PATIENCE_SECONDS)
    paused.wait("deferred")
    assert paused.ticks()[-1][1] == process
    paused.airflow.rest("PATCH", f"dags/{paused.dag}/dagRuns/{paused.run_id}", json={"state": "failed"})
    paused.wait_gone()
    assert paused.wait_ended().reason in (
        "stopped by Airflow: the task is failed",
        "stopped by Airflow: the task is skipped",
    )


def test_a_killed_triggerer_does_not_touch_training(start: Callable[..., Try], signs: Path) -> None:
    """Without workers that outlive the triggerer, and a controller that starts from the journal, it would be lost."""
    steady = start("elastic_tick", seconds=FOREVER, until=str(signs / "steady"))
    steady.wait("deferred")
    process = steady.wait_ticks(5)
    steady.airflow.kill_triggerer()
    killed_at = len(steady.ticks())
    poll(
        "ticks without a triggerer",
        lambda: len(steady.ticks()) > killed_at + 10 or None,
        timeout=PATIENCE_SECONDS,
    )
    steady.airflow.start_triggerer()
    (signs / "steady").touch()
    steady.wait("success")
    ticks = steady.ticks()
    assert {pid for _, pid in ticks} == {process}
    assert len(steady.run().attempts) == 1
    told = {int(number) for number, _ in TICKS.findall(steady.log())}
    assert told == {number for number, _ in ticks}, (
        "every line is in the log, those of the time between as well"
    )
    steady.wait_gone()


def test_a_trigger_that_moves_to_another_triggerer_is_left_alone(
    start: Callable[..., Try], signs: Path
) -> None:
    """Airflow calls on_kill of a trigger that another triggerer has taken over, while the task is still deferred.

    Without asking for the task's state, on_kill would end a training that nobody wants ended.
    """
    moved = start("elastic_tick", seconds=FOREVER, until=str(signs / "moved"))
    moved.wait("deferred")
    process = moved.wait_ticks(3)
    first = moved.airflow.triggerer_pids()
    frozen = [one for pid in first for one in processes.family(pid)]
    stand_still(moved.airflow, frozen)
    try:
        moved.airflow.start_triggerer()
        poll(
            "the second triggerer to have it",
            lambda: moved.log().count("starting") > 1 or None,
            timeout=PATIENCE_SECONDS,
        )
    finally:
        for one in frozen:
            processes.send(one, signal.SIGCONT)
    poll(
        "on_kill", lambda: "invoking on_kill" in moved.log() or None, timeout=PATIENCE_SECONDS, hint=moved.log
    )
    (signs / "moved").touch()
    moved.wait("success")
    assert {pid for _, pid in moved.ticks()} == {process}
    assert moved.run().outcome == "succeeded"


# -- connection --------------------------------------------------------------------------------------------------


def test_the_test_button_says_whether_runs_can_lie_there(standalone: Standalone, tmp_path: Path) -> None:
    def button(**extra: str) -> dict[str, Any]:
        body = {"connection_id": "elastic_x", "conn_type": "elastic", "extra": json.dumps(extra)}
        answer: dict[str, Any] = standalone.rest("POST", "connections/test", json=body)
        return answer

    good = button(run_root=str(tmp_path / "runs"), engine="local")
    assert good["status"] is True, good
    assert "creates exclusively" in good["message"]
    bad = button(run_root="/proc/runs")
    assert bad["status"] is False
    assert "NOT OK /proc/runs" in bad["message"]
    assert "one of" in button(run_root=str(tmp_path), engine="nonesuch")["message"]
    hooks = standalone.rest("GET", "/ui/connections/hook_meta")
    (ours,) = (hook for hook in hooks if hook["connection_type"] == "elastic")
    assert ours["extra_fields"].keys() == {
        *("run_root", "engine", "aws_conn_id", "kubernetes_conn_id", "namespace", "queue")
    }
