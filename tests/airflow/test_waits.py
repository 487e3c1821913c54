"""Every sensor and operator besides training, and what may happen to a task, on a real Airflow.

All kinds are in one DAG run, so that one killed triggerer serves all of them. What they wait for is written by the
test, as a controller would write it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import promotions
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import Run
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.airflow.dags.waits_dag import KINDS, WRONG
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.machine.waits import AT_ONCE, Waits, begin, waiting
from tests.support.runs.places import Place, save_source

#: Indices of the mapped tasks: what they wait for comes, or cannot come any more; they are marked while they wait.
GOOD, BAD, SUCCESS, FAILED = range(4)

#: How a task ends if what it waits for cannot come any more, and a part of what its log says.
OTHERWISE = {
    "run": ("failed", "has failed at step 0 (no luck): it does not reach step 20 any more"),
    "checkpoint": ("failed", "it does not reach a checkpoint with loss < 1 any more"),
    "health": ("skipped", "it does not reach a sign of bad health any more"),
    "capacity": ("failed", "the shelf is gone"),
    "scale": ("failed", "it does not reach 2 workers any more"),
    "save": ("failed", "it does not reach a checkpoint of step 1 or later any more"),
    "stop": ("success", "asked"),
    "prune": ("success", "removed checkpoints [10]"),
    "evaluate": ("failed", "this evaluation is bad"),
    "promote": ("skipped", "admin has refused it"),
    "rollback": ("failed", "has no promotion"),
}

#: What the log says of a template that renders to nonsense.
SAID = {
    "run": "run_uri: given 'runs/mine'; allowed: an absolute path, or s3://bucket/prefix",
    "checkpoint": "metric: given 'loss low'; allowed: a metric, one of < <= > >= ==, and a number",
    "health": "run_uri: given '7'; allowed: an absolute path",
    "capacity": "workers: given 'many'; allowed: an integer",
    "scale": "workers: given 'many'; allowed: an integer",
    "save": "run_uri: ",
    "stop": "run_uri: given 'runs/mine'",
    "prune": "run_uri: ",
    "evaluate": "step: given 'last'; allowed: an integer",
    "promote": "rule: given 'loss low'; allowed: a metric",
    "rollback": "to: given 'first'; allowed: an integer",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("waits")
    save_source(made)
    return made


# -- one of each: cleared while it waits, then without a triggerer, then tried again after it was done ---------------


@pytest.fixture(scope="module")
def place(folder: Path) -> Place:
    return Place(folder)


@pytest.fixture(scope="module")
def one_of_each(standalone: Standalone, folder: Path, place: Place) -> Waits:
    waits = begin(standalone, "elastic_waits", folder, unlucky=True)
    wait_cleared_killed_and_tried_again(waits, place)
    return waits


def wait_cleared_killed_and_tried_again(waits: Waits, place: Place) -> None:
    """Until all have succeeded in their third try."""
    waits.wait({(name, -1): waiting(name) for name in KINDS})
    waits.clear()
    second = {(name, -1): waiting(name) for name in KINDS if name not in AT_ONCE}
    waits.wait(second, tries=2)
    waits.airflow.kill_triggerer()
    place.go_on()
    waits.answer("Promote")
    waits.airflow.start_triggerer()
    waits.wait({(name, -1): "success" for name in KINDS}, tries=3, places=[place])


def test_cleared_without_a_triggerer_and_tried_again_they_do_their_work_once(
    one_of_each: Waits, folder: Path, place: Place
) -> None:
    found = {name: one["try_number"] for (name, _), one in one_of_each.tasks().items()}
    assert found == dict.fromkeys(KINDS, 3)
    asked = [one.by for one in Mailbox(place.run.store).read()]
    assert sorted({*asked}) == ["elastic_waits.save", "elastic_waits.scale"]
    models = [promotions.history(open_store(str(folder / name))) for name in ("models", "older")]
    assert [[one.kind for one in model] for model in models] == [
        ["promote"],
        ["promote", "promote", "rollback"],
    ]


RESULTS = {
    "run": {"state": "running", "step": 20},
    "checkpoint": {"checkpoint": 20, "metrics": {"loss": 0.5}},
    "health": {"alarms": [{"alarm": "restarts", "text": "1 restarts are used, of 6"}]},
    "capacity": {"workers": 2},
    "scale": {"workers": 2},
    "save": {"checkpoint": 20},
    "stop": {"state": "stopped"},
    "prune": {"removed": []},  # by the third try
    "evaluate": {"step": 5},
    "promote": {"number": 1, "step": 5},
    "rollback": {"number": 3, "restores": 1},
}


@pytest.mark.parametrize("name", KINDS)
def test_the_result(one_of_each: Waits, name: str) -> None:
    result = one_of_each.xcom(name)
    assert {key: result[key] for key in RESULTS[name]} == RESULTS[name]


# -- four of each, mapped: done, done for, marked as success, marked as failed ---------------------------------------


def evaluation(waits: Waits, index: int) -> Run:
    """The run that a mapped task makes to evaluate."""
    uri = waits.airflow.xcom(waits.dag, waits.run_id, "evaluate", "run_uri", map_index=index)
    return Run(open_store(uri))


def wait_until_driven(run: Run) -> None:
    poll("a job of the run", lambda: run.state.attempt.job, timeout=PATIENCE_SECONDS)


def wait_until_ended(run: Run, log: Callable[[], str]) -> Run:
    def probe() -> Run | None:
        return run if run.state.ended else None

    return poll("the run to end", probe, timeout=PATIENCE_SECONDS, hint=lambda: f"{run.state}\n{log()}")


@pytest.fixture(scope="module")
def mapped(standalone: Standalone, folder: Path) -> Waits:
    names = ("good", "bad", "success", "failed")
    places = [Place(folder / name, promoted=name != "bad") for name in names]
    waits = begin(standalone, "elastic_waits_mapped", folder)
    all_of = [(name, index) for name in KINDS for index in range(4)]
    waits.wait({key: "failed" if key == ("rollback", BAD) else waiting(key[0]) for key in all_of})
    for index in (SUCCESS, FAILED):
        # Nobody ends a run whose trigger has not started yet. It has no workers then.
        wait_until_driven(evaluation(waits, index))
    for name in KINDS:
        if name not in AT_ONCE:
            for index, state in ((SUCCESS, "success"), (FAILED, "failed")):
                standalone.set_task_state(waits.dag, waits.run_id, name, state, index)  # type: ignore[arg-type]
    places[BAD].go_wrong()
    for index in (GOOD, SUCCESS, FAILED):
        places[index].go_on()
    waits.answer("Promote", GOOD)
    waits.answer("Refuse", BAD)
    ends = {(name, GOOD): "success" for name in KINDS}
    ends |= {(name, BAD): OTHERWISE[name][0] for name in KINDS}
    waits.wait(ends, places=[places[GOOD]])
    return waits


@pytest.mark.parametrize("name", KINDS)
def test_mapped_tasks_wait_each_for_their_own_and_say_why_it_does_not_come(mapped: Waits, name: str) -> None:
    assert mapped.xcom(name, GOOD)
    assert OTHERWISE[name][1] in mapped.log(name, BAD)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in AT_ONCE])
def test_a_marked_task_stays_as_it_was_marked_and_nothing_waits_for_it_any_more(
    mapped: Waits, folder: Path, name: str
) -> None:
    for index, state in ((SUCCESS, "success"), (FAILED, "failed")):
        task = mapped.airflow.task(mapped.dag, mapped.run_id, name, index)
        assert (task["state"], task["try_number"]) == (state, 1)
        place = folder / state
        if name == "promote":
            assert promotions.current(open_store(str(place / "models"))) is None
        if name == "evaluate":
            run = wait_until_ended(evaluation(mapped, index), lambda i=index: mapped.log("evaluate", i))
            assert run.state.reason == f"stopped by Airflow: the task is {state}"


# -- templates that render to nonsense -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrong(standalone: Standalone, folder: Path, place: Place) -> Waits:
    waits = begin(standalone, "elastic_waits_wrong", folder)
    waits.wait({(name, -1): "failed" for name in WRONG})
    return waits


@pytest.mark.parametrize("name", WRONG)
def test_a_template_that_renders_to_nonsense_is_refused_at_once_by_the_name_of_its_parameter(
    wrong: Waits, name: str
) -> None:
    assert SAID[name] in wrong.log(name)
    assert wrong.tasks()[(name, -1)]["try_number"] == 1
