"""Promotions on a real Airflow: by tasks, after a person has agreed, and as events that start other DAGs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import promotions
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.models import Request, TorchExporter, promote
from airflow_elastic.spec import layout
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.machine.waits import wait_parked
from tests.support.training.saving import network, save

WATCHERS = ("on_promotion", "on_checkpoint", "on_folder", "on_outlet")


@pytest.fixture(scope="module")
def place(standalone: Standalone) -> Path:
    """Where the DAGs look for the run and its models: nothing is there when they begin to watch."""
    for dag in (*WATCHERS, "promote", "promote_if_agreed", "go_back"):
        standalone.wait_for_dag(dag)
    made = standalone.home / "promoted"
    for step in (5, 10):
        save(made / "run", step, network(step))
    save_below(made / "runs/one", 5)
    return made


def save_below(run: Path, step: int) -> None:
    """Save, where a folder with runs is watched: a run has a journal."""
    save(run, step, network(step))
    open_store(str(run)).create(layout.journal_entry(0), b"{}")


@pytest.fixture(scope="module")
def model(place: Path) -> Store:
    return open_store(str(place / "models"))


def ended(airflow: Standalone, dag: str, state: str, task: str = "promote", **conf: Any) -> Any:
    """Run a DAG; the result of its task where that succeeds."""
    run = airflow.trigger(dag, conf)
    airflow.wait_task(dag, run, task, state, timeout=PATIENCE_SECONDS)
    return airflow.xcom(dag, run, task) if state == "success" else airflow.task_log(dag, run, task)


def payloads(airflow: Standalone, dag: str) -> list[Any]:
    """What the DAG runs of a watcher were told so far, in any order."""
    runs = airflow.rest("GET", f"dags/{dag}/dagRuns")["dag_runs"]
    return [
        one
        for run in runs
        if run["state"] == "success"
        for one in airflow.xcom(dag, run["dag_run_id"], "told")
    ]


def wait_told(airflow: Standalone, dag: str, field: str, wanted: list[Any]) -> None:
    """Wait until the events of a DAG are these, each once."""

    def found() -> list[Any]:
        return sorted(one[field] for one in payloads(airflow, dag))

    def probe() -> bool | None:
        return len(found()) >= len(wanted) or None

    poll(
        f"events {wanted} for {dag}",
        probe,
        timeout=PATIENCE_SECONDS,
        hint=lambda: f"{found()}; {airflow.condition()}",
    )
    assert found() == wanted


def wait_noted(airflow: Standalone, asset: str, number: int) -> None:
    """Wait until a trigger has noted that it has fired this event. An event right before a kill may come twice."""
    (found,) = airflow.rest("GET", "assets", params={"name_pattern": asset})["assets"]

    def probe() -> bool | None:
        noted = airflow.rest("GET", f"assets/{found['id']}/state-store")["asset_state_store"]
        values = [one["value"] for one in noted]
        return any(number in (one.values() if isinstance(one, dict) else [one]) for one in values) or None

    poll(f"a note of {number}", probe, timeout=PATIENCE_SECONDS, hint=airflow.condition)


def test_a_better_model_is_promoted_and_a_worse_one_is_not(
    standalone: Standalone, place: Path, model: Store
) -> None:
    first = ended(standalone, "promote", "success", step=5, accuracy=0.8, why="the first")
    assert (first["number"], first["step"], first["why"]) == (1, 5, "the first")
    assert first["by"].startswith("promote.promote (")
    assert first["lineage"]["code"]["bundle"]
    log = ended(standalone, "promote", "skipped", step=10, accuracy=0.7)
    assert "accuracy 0.7 is not > 0.8 (the promoted model has 0.8); promotion 1 stays" in log
    now = promotions.current(model)
    assert now is not None
    assert now.number == 1
    assert (Path(model.uri) / now.weights.key).stat().st_size == now.weights.size


def test_a_person_is_asked_first(standalone: Standalone, place: Path, model: Store) -> None:
    def asked(answer: str) -> tuple[str, Any]:
        run = standalone.trigger("promote_if_agreed", {"step": 10, "accuracy": 0.9})
        standalone.wait_task("promote_if_agreed", run, "promote", "awaiting_input", timeout=PATIENCE_SECONDS)
        path = f"dags/promote_if_agreed/dagRuns/{run}/taskInstances/promote/-1/hitlDetails"
        question = standalone.rest("GET", path)
        wait_parked(standalone, run, "promote")
        standalone.rest("PATCH", path, json={"chosen_options": [answer], "params_input": {}})
        return run, question

    run, question = asked("Refuse")
    assert question["subject"] == f"Promote checkpoint 10 to {model.uri}?"
    assert "| accuracy | 0.9 | 0.8 |" in question["body"]
    standalone.wait_task("promote_if_agreed", run, "promote", "skipped", timeout=PATIENCE_SECONDS)
    assert "admin has refused it" in standalone.task_log("promote_if_agreed", run, "promote")
    run, _ = asked("Promote")
    standalone.wait_task("promote_if_agreed", run, "promote", timeout=PATIENCE_SECONDS)
    result = standalone.xcom("promote_if_agreed", run, "promote")
    assert (result["number"], result["step"], result["compared"]["metrics"]) == (2, 10, {"accuracy": 0.8})
    assert result["by"].startswith("admin, by promote_if_agreed.promote (")


def test_each_is_an_event_once_also_over_a_restart(standalone: Standalone, place: Path, model: Store) -> None:
    back = ended(standalone, "go_back", "success", task="back")
    assert (back["number"], back["restores"]) == (3, 1)
    wait_told(standalone, "on_promotion", "number", [1, 2, 3])
    wait_told(standalone, "on_checkpoint", "step", [5, 10])
    wait_told(standalone, "on_folder", "step", [5])
    wait_told(standalone, "on_outlet", "number", [1])
    for name, number in (("promoted", 3), ("saved", 10), ("in a folder", 5)):
        wait_noted(standalone, name, number)
    killed = standalone.kill_triggerer()
    assert killed
    save(place / "run", 15, network(15))
    save_below(place / "runs/one", 15)
    save_below(place / "runs/two/0", 7)
    promote(model, open_store(str(place / "run")), Request("anna, in a shell", step=15), TorchExporter())
    standalone.start_triggerer()
    wait_told(standalone, "on_promotion", "number", [1, 2, 3, 4])
    wait_told(standalone, "on_checkpoint", "step", [5, 10, 15])
    wait_told(standalone, "on_folder", "step", [5, 7, 15])
    newest = next(one for one in payloads(standalone, "on_promotion") if one["number"] == 4)
    assert newest["by"] == "anna, in a shell"
    assert json.loads(model.get("current.json") or b"")["number"] == 4
