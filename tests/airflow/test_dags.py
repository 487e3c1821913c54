"""The DAGs that come with the project, run for real: they are what users copy.

tests/airflow/dags holds links to them, so that the Airflow of all tests runs them too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, promotions
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import open_run
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS

DAGS = Path(__file__).parents[2] / "dags"
SWEEP = "digits_sweep"
OFTEN, BACK = "retrain_often", "retrain_back"
QUICKSTART, RETRAIN, KUBERNETES = "digits_quickstart", "digits_retrain", "digits_kubernetes"

PARSE = """
import json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "sklearn", "transformers"}:
            raise ImportError(f"{name} is imported while a DAG is parsed")

sys.meta_path.insert(0, Blocker())

from airflow.dag_processing.dagbag import DagBag

sys.path.append(sys.argv[1])
bag = DagBag(sys.argv[1])
assert not bag.import_errors, bag.import_errors
for dag in bag.dags.values():
    print(json.dumps([dag.dag_id, {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks}]))
"""


def test_parsing_a_dag_imports_no_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(DAGS)],
        env={
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    dags = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    common = {"evaluate": ["prepare", "train"], "prepare": [], "train": ["prepare"]}
    promote = ["evaluate", "prepare", "train"]
    assert dags.keys() >= {
        *(SWEEP, "digits_watched", "digits_finetune"),
        *("digits_long", "digits_urgent", "digits_alone"),
    }
    assert {name: dags[name] for name in (QUICKSTART, KUBERNETES, RETRAIN)} == {
        QUICKSTART: {**common, "promote": promote},
        KUBERNETES: {**common, "promote": promote},
        RETRAIN: {
            **common,
            "evaluate_promoted": ["prepare"],
            "promote": [*promote[:1], "evaluate_promoted", *promote[1:]],
        },
    }


# -- for real --------------------------------------------------------------------------------------------------------


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1800)
def test_the_quickstart_promotes_its_model_and_the_next_ones_go_on_from_there(standalone: Standalone) -> None:
    standalone.wait_for_dag(QUICKSTART)
    standalone.wait_for_dag(RETRAIN)
    assert not [name for name in standalone.import_errors() if "digits" in name]
    home = open_store(str(standalone.home / "digits/model"))

    first = standalone.trigger(QUICKSTART, {"epochs": 1, "step_seconds": 0})
    standalone.wait_run(QUICKSTART, first, timeout=4 * PATIENCE_SECONDS)
    promoted = promotions.current(home)
    assert promoted is not None
    assert (promoted.number, promoted.replaces, promoted.step) == (1, None, 23)
    assert 0.15 < promoted.metrics["accuracy"] < 0.97  # one epoch: better than a guess
    assert checkpoint_retention.pinned(open_store(promoted.run)) == [23]
    assert [event["extra"]["id"] for event in asset_events(standalone, QUICKSTART, first)] == [promoted.id]
    assert "[rank 0] rank 0 of 2 begins at step 0" in standalone.task_log(QUICKSTART, first, "train")

    further = standalone.trigger(RETRAIN, {"epochs": 4})
    standalone.wait_run(RETRAIN, further, timeout=5 * PATIENCE_SECONDS)
    origin = open_run(standalone.xcom(RETRAIN, further, "train", "run_uri")).state.origin
    assert origin is not None
    assert origin.promotion == 1
    better = promotions.current(home)
    assert better is not None
    assert (better.number, better.replaces) == (2, 1)
    assert better.compared is not None
    assert better.metrics["accuracy"] > better.compared.metrics["accuracy"]
    assert [event["extra"]["id"] for event in asset_events(standalone, RETRAIN, further)] == [better.id]
    assert home.get(promoted.weights.key) is not None, "promoted models stay"


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1800)
def test_three_scheduled_generations(standalone: Standalone) -> None:
    """The first is promoted, as there is none; the second is better; the third is worse, and goes back to nothing."""
    home = open_store(str(standalone.home / "retrained model"))
    for name in (OFTEN, BACK):
        standalone.wait_for_dag(name)

    standalone.rest("PATCH", f"dags/{OFTEN}", json={"is_paused": False})

    def generation(number: int) -> str:
        def found() -> str | None:
            asked = {"order_by": "run_after", "limit": 100}
            runs = standalone.rest("GET", f"dags/{OFTEN}/dagRuns", params=asked)["dag_runs"]
            return str(runs[number]["dag_run_id"]) if len(runs) > number else None

        run_id = str(poll("the scheduler to begin a generation", found, timeout=PATIENCE_SECONDS))
        assert run_id.startswith("scheduled__")
        standalone.wait_run(OFTEN, run_id, timeout=5 * PATIENCE_SECONDS)
        return run_id

    first, second, third = (generation(number) for number in range(3))
    standalone.rest("PATCH", f"dags/{OFTEN}", json={"is_paused": True})
    assert standalone.task_state(OFTEN, first, "old") == "skipped"
    one, two = promotions.history(home)
    assert (two.number, two.compared and two.compared.number) == (2, 1)
    assert two.metrics["accuracy"] > one.metrics["accuracy"]
    assert two.lineage.origin is not None
    assert two.lineage.origin["promotion"] == 1
    old, new = (standalone.xcom(OFTEN, second, name) for name in ("old", "new"))
    assert old["metrics"] == pytest.approx(one.metrics), "the same model on the same digits"
    assert new["metrics"] == two.metrics

    assert standalone.task_state(OFTEN, third, "promote") == "skipped"
    assert "accuracy > promoted" in standalone.task_log(OFTEN, third, "promote")
    back = standalone.trigger(BACK, {})
    standalone.wait_run(BACK, back, timeout=PATIENCE_SECONDS)
    three = promotions.current(home)
    assert three is not None
    assert (three.number, three.restores, three.weights) == (3, 1, one.weights)


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1800)
def test_a_sweep_stops_its_losers_and_promotes_the_best(standalone: Standalone) -> None:
    standalone.wait_for_dag(SWEEP)
    run_id = standalone.trigger(SWEEP, {"epochs": 10, "step_seconds": 0.5})
    standalone.wait_run(SWEEP, run_id, timeout=5 * PATIENCE_SECONDS)
    states = [
        standalone.rest("GET", f"dags/{SWEEP}/dagRuns/{run_id}/taskInstances/train/{index}")["state"]
        for index in range(4)
    ]
    assert sorted(states) == ["skipped", "skipped", "success", "success"]
    winner = standalone.xcom(SWEEP, run_id, "best")
    made = standalone.xcom(SWEEP, run_id, "promote")
    assert made["run"] == winner
    assert winner.rpartition("/")[2] in ("0.001", "0.01"), "at the other rates little is learnt in two epochs"


def asset_events(airflow: Standalone, dag_id: str, run_id: str) -> list[dict[str, Any]]:
    asked = {"source_dag_id": dag_id, "source_run_id": run_id}
    events: list[dict[str, Any]] = airflow.rest("GET", "assets/events", params=asked)["asset_events"]
    return events


# -- the parts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package beside the DAGs, as Airflow finds it."""
    monkeypatch.syspath_prepend(str(DAGS))
    import digits.data

    return digits


def test_the_data_is_the_same_each_time(digits: Any, tmp_path: Path) -> None:
    home = open_store(str(tmp_path / "a"))
    path = Path(digits.data.write(home))
    first = path.read_bytes()
    assert digits.data.write(home) == str(path)
    assert path.read_bytes() == first
    assert [*(tmp_path / "a").iterdir()] == [path]
    import numpy as np

    with np.load(path) as stored:
        assert stored["images"].shape == (1437, 1, 8, 8)
        assert stored["validation_images"].shape == (180, 1, 8, 8)
        assert stored["held_out_images"].shape == (180, 1, 8, 8)


def test_the_script_also_runs_by_itself(digits: Any, tmp_path: Path) -> None:
    digits.data.write(open_store(str(tmp_path)))
    command = [
        sys.executable,
        str(DAGS / "digits" / "train_digits.py"),
        "--data",
        "digits.npz",
        "--epochs",
        "1",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"rank 0 of 1 begins at step 0\nepoch 0: accuracy 0\.\d{4}\n", done.stdout), (
        done.stdout
    )
