"""The DAGs that come with the project, run for real: they are what users copy.

tests/airflow/dags holds links to them, so that the Airflow of all tests runs them too.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.runs import open_run
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.s3 import s3_server

DAGS = Path(__file__).parents[2] / "dags"
QUICKSTART, RETRAIN, KUBERNETES = "digits_quickstart", "digits_retrain", "digits_kubernetes"

PARSE = """
import importlib, json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "sklearn"}:
            raise ImportError(f"{name} is imported while a DAG is parsed")

sys.meta_path.insert(0, Blocker())
sys.path.append(sys.argv[1])
for name in sys.argv[2:]:
    dag = importlib.import_module(name).dag
    print(json.dumps([dag.dag_id, {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks}]))
"""


def test_parsing_a_dag_imports_no_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(DAGS), QUICKSTART, RETRAIN, KUBERNETES],
        env={"AIRFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    dags = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    common = {"evaluate": ["prepare", "train"], "prepare": [], "promote": ["evaluate"]}
    assert dict(dags) == {
        QUICKSTART: {**common, "train": ["prepare"]},
        KUBERNETES: {**common, "train": ["prepare"]},
        RETRAIN: {**common, "promoted": [], "train": ["prepare", "promoted"]},
    }


# -- for real --------------------------------------------------------------------------------------------------------


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1800)
def test_a_model_is_promoted_when_it_is_better_and_trained_on_from_there(standalone: Standalone) -> None:
    standalone.wait_for_dag(QUICKSTART)
    standalone.wait_for_dag(RETRAIN)
    assert not [name for name in standalone.import_errors() if "digits" in name]
    home = standalone.home / "digits"

    nothing_yet = standalone.trigger(RETRAIN, {"epochs": 1})
    first = standalone.trigger(QUICKSTART, {"epochs": 1, "step_seconds": 0})
    standalone.wait_task(RETRAIN, nothing_yet, "promoted", "skipped", timeout=PATIENCE_SECONDS)
    assert "run the DAG digits_quickstart first" in standalone.task_log(RETRAIN, nothing_yet, "promoted")
    standalone.wait_run(RETRAIN, nothing_yet, timeout=PATIENCE_SECONDS)
    assert standalone.task_state(RETRAIN, nothing_yet, "train") == "skipped"

    standalone.wait_run(QUICKSTART, first, timeout=3 * PATIENCE_SECONDS)
    promoted = current(home)
    assert (promoted["model"], promoted["previous"]) == ("0001", None)
    assert 0.15 < promoted["accuracy"] < 0.97  # one epoch: better than a guess
    assert promoted["checkpoint"]["step"] == 23
    assert checkpoint_retention.pinned(open_store(promoted["run_uri"])) == [23]
    assert [event["extra"] for event in asset_events(standalone, QUICKSTART, first)] == [promoted]
    assert "[rank 0] rank 0 of 2 begins at step 0" in standalone.task_log(QUICKSTART, first, "train")

    # The same training again is no better; what goes on from the promoted model is.
    again = standalone.trigger(QUICKSTART, {"epochs": 1, "step_seconds": 0})
    further = standalone.trigger(RETRAIN, {"epochs": 4})
    standalone.wait_run(QUICKSTART, again, timeout=3 * PATIENCE_SECONDS)
    assert standalone.task_state(QUICKSTART, again, "promote") == "skipped"
    assert "does not beat" in standalone.task_log(QUICKSTART, again, "promote")
    assert asset_events(standalone, QUICKSTART, again) == []

    standalone.wait_run(RETRAIN, further, timeout=3 * PATIENCE_SECONDS)
    command = open_run(standalone.xcom(RETRAIN, further, "train", "run_uri")).state.spec.command
    assert command[command.index("--init-from") + 1] == promoted["weights"]
    better = current(home)
    assert (better["model"], better["previous"]) == ("0002", "0001")
    assert better["accuracy"] > promoted["accuracy"]
    assert [event["extra"] for event in asset_events(standalone, RETRAIN, further)] == [better]
    assert Path(promoted["weights"]).is_file(), "promoted models stay"


def current(home: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads(max((home / "models").iterdir()).read_text())
    return card


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
    import digits.promotion

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
        assert stored["held_out_images"].shape == (360, 1, 8, 8)


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


@pytest.fixture(params=["folder", "s3"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Where data and models lie."""
    if request.param == "folder":
        yield open_store(str(tmp_path))
        return
    with s3_server() as server:
        yield server.store("digits")


def candidate(home: Store, accuracy: float, run: str = "a", weights: bytes = b"weights") -> dict[str, Any]:
    home.put(f"weights/{run}.pt", weights)
    return {
        "accuracy": accuracy,
        "run_uri": f"/runs/{run}",
        "weights": f"{home.uri}/weights/{run}.pt",
        "sha256": hashlib.sha256(weights).hexdigest(),
    }


def test_only_a_better_model_is_promoted(digits: Any, home: Store) -> None:
    promotion = digits.promotion
    assert promotion.current(home) is None
    first = promotion.promote(home, candidate(home, 0.9))
    for accuracy in (0.9, 0.5):
        with pytest.raises(promotion.NotBetter, match=r"does not beat 0\.9000 of the promoted model 0001"):
            promotion.promote(home, candidate(home, accuracy, "b"))
    assert promotion.current(home) == first
    second = promotion.promote(home, candidate(home, 0.95, "b", b"better"))
    assert (second["model"], second["previous"]) == ("0002", "0001")
    assert promotion.current(home) == second


def test_a_try_that_was_cut_short_is_repeated(digits: Any, home: Store) -> None:
    told = digits.promotion.promote(home, candidate(home, 0.9))
    assert digits.promotion.promote(home, candidate(home, 0.9)) == told, (
        "promoted already: that is no failure"
    )


def test_of_two_that_promote_at_once_the_better_one_wins(digits: Any, home: Store) -> None:
    promotion = digits.promotion
    candidates = [candidate(home, 0.9 + i / 100, str(i), str(i).encode()) for i in range(8)]

    def attempt(one: dict[str, Any]) -> str | None:
        try:
            name: str = promotion.promote(home, one)["model"]
        except promotion.NotBetter:
            return None
        return name

    with ThreadPoolExecutor(len(candidates)) as pool:
        promoted = [name for name in pool.map(attempt, candidates) if name]
    assert promotion.current(home)["accuracy"] == 0.97
    cards = [json.loads(home.get(entry.key) or b"") for entry in home.list("models/")]
    assert sorted(promoted) == [card["model"] for card in cards], "two have been given one number"
    assert [card["accuracy"] for card in cards] == sorted(card["accuracy"] for card in cards)


def test_weights_that_were_not_measured_are_refused(digits: Any, home: Store) -> None:
    one = candidate(home, 0.9)
    home.put("weights/a.pt", b"others")
    with pytest.raises(ValueError, match="is not the file that was measured"):
        digits.promotion.promote(home, one)
    assert digits.promotion.current(home) is None
