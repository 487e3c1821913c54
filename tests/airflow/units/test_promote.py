"""Operators on promoted models without Airflow's services: what they skip, refuse, ask and return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TaskAwaitingInput,
)
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_elastic.adapters.records import checkpoint_retention, promotions
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control import start_run
from airflow_elastic.control.models import TorchExporter
from airflow_elastic.operators import ElasticPromoteOperator, ElasticRollbackOperator
from airflow_elastic.operators.task import approval
from airflow_elastic.operators.task.lineage import Lineage
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.models.start import StartFrom
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import spec
from tests.support.models import a_run, exported
from tests.support.runs.surface import FakeTask

METRICS = {10: {"accuracy": 0.7}, 20: {"accuracy": 0.9}}


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    """The export itself has tests of its own, with torch."""
    monkeypatch.setattr(TorchExporter, "__call__", lambda self, run, step, path: exported(run, step, path))


@pytest.fixture
def run(tmp_path: Path) -> Store:
    return a_run(tmp_path / "run", METRICS)


@pytest.fixture
def model(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "models"))


def context(task: Any, dag_run: str = "today") -> Any:
    ti = FakeTask(dag_id="retrain", task_id=task.task_id, run_id=dag_run)
    return {"ti": ti, "task": task, "outlet_events": OutletEventAccessors()}


def promote_task(model: Store, run: Store | None, **options: Any) -> ElasticPromoteOperator:
    return ElasticPromoteOperator(
        task_id="promote",
        model_uri=model.uri,
        source=run and run.uri,
        **options,  # type: ignore[arg-type]
    )


def test_the_record_is_the_result_and_the_metadata_of_the_asset(model: Store, run: Store) -> None:
    asset = Asset("digits", "s3://models/digits")
    task = promote_task(model, run, step="10", rule="accuracy > promoted", data={"days": 3}, outlets=[asset])
    told = context(task)
    result = task.execute(told)
    assert (result["number"], result["step"], result["by"]) == (1, 10, "retrain.promote (today)")
    assert result["lineage"]["data"] == {"days": 3}
    assert told["outlet_events"][asset].extra == {"model_uri": model.uri, **result}
    assert task.execute(context(task)) == result, "a retry"
    assert len(promotions.history(model)) == 1


def test_lineage_is_a_chain_from_run_to_model_to_run(model: Store, run: Store, tmp_path: Path) -> None:
    def names(datasets: Any) -> list[tuple[str, str]]:
        return [(one.namespace, one.name) for one in datasets]

    task = promote_task(model, run, step=10)
    assert task.get_openlineage_facets_on_complete(None) is None
    task.execute(context(task))
    promotion = task.get_openlineage_facets_on_complete(None)
    assert names(promotion.inputs) == [("file", f"{run.uri}/{layout.manifest(10)}")]
    assert names(promotion.outputs) == [("file", model.uri)]
    training = Lineage()
    start = StartFrom(model.uri)
    training._ended_run = start_run(
        open_store(str(tmp_path / "next")), spec(start_from=start), engine=FakeEngine()
    )
    assert names(training.get_openlineage_facets_on_complete(None).inputs) == names(promotion.outputs)


def test_a_worse_one_is_skipped_with_both_values(model: Store, run: Store) -> None:
    promote_task(model, run).execute(context(promote_task(model, run)))
    worse = promote_task(model, run, step=10, rule="accuracy > promoted")
    with pytest.raises(
        AirflowSkipException, match=r"accuracy 0.7 is not > 0.9 \(the promoted model has 0.9\)"
    ):
        worse.execute(context(worse, "tomorrow"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": None}, "source is None"),
        ({"source": "None"}, "source is 'None'"),
        ({"metrics": None}, "metrics is None"),
    ],
)
def test_nothing_to_promote_skips(model: Store, run: Store, options: dict[str, Any], said: str) -> None:
    task = promote_task(model, run, metrics="{{ of another task }}", rule="accuracy > promoted")
    for name, value in options.items():  # as a template has rendered it
        setattr(task, name, value)
    with pytest.raises(AirflowSkipException, match=f"nothing to promote: {said}"):
        task.execute(context(task))


def test_results_of_evaluations_are_taken_as_they_are(model: Store, run: Store) -> None:
    first = promote_task(model, run, metrics={"metrics": {"f1": "0.5"}, "step": 20})
    first.execute(context(first))
    second = promote_task(
        model,
        run,
        metrics={"metrics": {"f1": 0.6}},
        promoted_metrics={"metrics": {"f1": 0.55}, "promotion": 1},
        rule="f1 > promoted",
    )
    assert second.execute(context(second, "tomorrow"))["compared"] == {"number": 1, "metrics": {"f1": 0.55}}
    with pytest.raises(AirflowFailException, match="promoted_metrics are of promotion 1"):
        second.execute(context(second, "the day after"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rule": "accuracy better"}, "promote.rule: given 'accuracy better'; allowed: a metric"),
        ({"format": "onnx"}, "promote.format: given 'onnx'; allowed: one of safetensors, pt"),
        ({"approve": "yes"}, "promote.approve: given 'yes'; allowed: True or False"),
        (
            {"step": 5, "best": "max accuracy"},
            "promote.best: given 'max accuracy'; allowed: none with `step`",
        ),
        ({"best": "accuracy"}, "promote.best: given 'accuracy'; allowed: `min` or `max`"),
        ({"source": "runs/one"}, "promote.source: given 'runs/one'; allowed: an absolute path"),
        ({"model_uri": "models"}, "promote.model_uri: given 'models'; allowed: an absolute path"),
    ],
)
def test_what_is_refused_while_the_dag_is_parsed(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        ElasticPromoteOperator(**{"task_id": "promote", "model_uri": "/models", "source": "/run", **options})
    assert said in str(error.value)


def test_what_another_try_cannot_help_with_and_what_it_may(model: Store, run: Store, tmp_path: Path) -> None:
    for options, said in (({"step": "seven"}, "step: given 'seven'"), ({"metrics": [1]}, "metrics: given")):
        wrong = promote_task(model, run, **options)
        with pytest.raises(AirflowFailException, match=said):
            wrong.execute(context(wrong))
    early = promote_task(model, open_store(str(tmp_path / "a run to come")))
    with pytest.raises(AirflowException, match="has no checkpoint") as error:
        early.execute(context(early))
    assert not isinstance(error.value, AirflowFailException)


def test_a_person_is_asked(model: Store, run: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = promote_task(model, run, step=10)
    first.execute(context(first))
    asked: dict[str, Any] = {}
    monkeypatch.setattr(approval, "upsert_hitl_detail", lambda **given: asked.update(given))
    task = promote_task(model, run, best="max accuracy", rule="accuracy > promoted", approve=True)
    told = context(task, "tomorrow")
    with pytest.raises(TaskAwaitingInput) as waits:
        task.execute(told)
    assert (waits.value.method_name, waits.value.kwargs) == ("decided", {"step": 20})
    assert asked["subject"] == f"Promote checkpoint 20 to {model.uri}?"
    assert "| accuracy | 0.9 | 0.7 |" in asked["body"]
    assert (asked["options"], asked["defaults"]) == (["Promote", "Refuse"], ["Refuse"])
    held = "waits for approval in retrain.promote (tomorrow)"
    assert checkpoint_retention.pins(run)[20].by == held

    ada = {"id": "1", "name": "ada"}
    for event, said in (
        ({"chosen_options": ["Refuse"], "responded_by_user": ada}, "ada has refused it"),
        (
            {"chosen_options": ["Refuse"], "responded_by_user": None, "timedout": True},
            "nobody has agreed in time",
        ),
    ):
        checkpoint_retention.pin(run, 20, by=held)
        with pytest.raises(AirflowSkipException, match=said):
            task.decided(told, event, 20)
        assert list(checkpoint_retention.pins(run)) == [10]
    checkpoint_retention.pin(run, 20, by=held)
    agreed = task.decided(told, {"chosen_options": ["Promote"], "responded_by_user": ada}, 20)
    assert (agreed["number"], agreed["by"]) == (2, "ada, by retrain.promote (tomorrow)")
    assert checkpoint_retention.is_pinned_by(run, 20, f"promoted to {model.uri}")
    assert not checkpoint_retention.is_pinned_by(run, 20, held), "nothing waits any more"


def test_each_mapped_task_that_waits_keeps_its_checkpoint_for_itself() -> None:
    held = [approval.waiting(FakeTask(map_index=index)) for index in (-1, 0, 1)]
    assert len({*held}) == 3


def test_a_number_that_is_none_is_refused_while_the_dag_is_parsed() -> None:
    with pytest.raises(SpecError, match=r"back\.to: given 'last'; allowed: an integer, at least 1"):
        ElasticRollbackOperator(task_id="back", model_uri="/models", to="last")


def test_going_back(model: Store, run: Store) -> None:
    task = ElasticRollbackOperator(task_id="back", model_uri=model.uri, why="errors", to="{{ params.to }}")
    task.to = "1"
    with pytest.raises(AirflowException, match="has no promotion"):
        task.execute(context(task))
    for step in METRICS:
        made = promote_task(model, run, step=step)
        made.execute(context(made, f"of {step}"))
    back = task.execute(context(task))
    assert (back["number"], back["restores"], back["why"]) == (3, 1, "errors")
    assert task.execute(context(task)) == back
