"""A checkpoint is promoted if its rule holds; an earlier model is promoted again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, promotions
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.models import NotBetter, Request, promote, rollback
from airflow_elastic.spec import layout as of_runs
from airflow_elastic.spec.checkpoints.evaluation import Evaluation
from airflow_elastic.spec.errors import InvalidInput, RunMissing, SpecError, StoreError
from airflow_elastic.spec.models import Compared, layout
from tests.support.models import a_run, exported, saved

METRICS = {
    10: {"accuracy": 0.7, "loss": 0.4},
    20: {"accuracy": 0.9, "loss": 0.3},
    30: {"accuracy": 0.8, "loss": 0.2},
}


@pytest.fixture
def run(tmp_path: Path) -> Store:
    return a_run(tmp_path / "run", METRICS)


def test_the_first_model(home: Store, run: Store) -> None:
    record = promote(
        home, run, Request("anna", rule="accuracy > promoted", why="the first", data={"days": 3}), exported
    )
    assert (record.number, record.kind, record.step, record.run) == (1, "promote", 30, run.uri)
    assert (record.metrics, record.rule) == (METRICS[30], "accuracy > promoted")
    assert (record.compared, record.replaces) == (None, None)
    assert record.lineage.data == {"days": 3}
    weights = home.get(record.weights.key) or b""
    assert weights == b"weights of step 30"
    assert record.weights.sha256 == hashlib.sha256(weights).hexdigest()
    assert promotions.current(home) == record
    assert json.loads(home.get(layout.CURRENT) or b"") == json.loads(home.get(layout.promotion(1)) or b"")
    assert checkpoint_retention.pins(run)[30].by == f"promoted to {home.uri}"


def test_a_better_one_replaces_it_and_a_worse_one_does_not(home: Store, run: Store) -> None:
    promote(home, run, Request("anna", step=30), exported)
    with pytest.raises(NotBetter) as error:
        promote(home, run, Request("anna", step=10, rule="accuracy > promoted"), exported)
    assert str(error.value) == (
        f"checkpoint 10 of {run.uri} does not fulfil `accuracy > promoted`: accuracy 0.7 is not > 0.8 (the promoted "
        "model has 0.8); promotion 1 stays"
    )
    assert list(checkpoint_retention.pins(run)) == [30]
    better = promote(home, run, Request("anna", best="max accuracy", rule="accuracy > promoted"), exported)
    assert (better.number, better.step, better.replaces) == (2, 20, 1)
    assert better.compared == Compared(1, METRICS[30])


@pytest.mark.parametrize(("best", "step"), [("max accuracy", 20), ("min loss", 30), ("min accuracy", 10)])
def test_the_best_one_is_chosen(home: Store, run: Store, best: str, step: int) -> None:
    assert promote(home, run, Request("anna", best=best), exported).step == step


def test_what_evaluations_have_measured_counts(home: Store, run: Store, tmp_path: Path) -> None:
    data = of_runs.checkpoint_data(10, 1, 1)
    one = Evaluation("a", "/runs/evaluation", 5.0, {"accuracy": 0.99, "f1": 0.5}, data)
    checkpoint_retention.note_evaluation(run, of_runs.evaluations(10), one)
    other = Evaluation("b", "/runs/evaluation", 6.0, {"accuracy": 0.1}, "another folder of the same step")
    checkpoint_retention.note_evaluation(run, of_runs.evaluations(10), other)
    record = promote(home, run, Request("anna", best="max accuracy"), exported)
    assert (record.step, record.metrics) == (10, {"accuracy": 0.99, "loss": 0.4, "f1": 0.5})
    later = Evaluation("a", "/runs/evaluation", 7.0, {"accuracy": 0.95}, record.weights.key)
    checkpoint_retention.note_evaluation(home, layout.evaluations(1), later)
    second = promote(
        home, run, Request("anna", step=20, metrics={"accuracy": 0.96}, rule="accuracy > promoted"), exported
    )
    assert second.compared == Compared(1, {"accuracy": 0.95, "loss": 0.4, "f1": 0.5})


def test_metrics_that_are_given_count(home: Store, run: Store) -> None:
    promote(home, run, Request("anna", step=30), exported)
    request = Request(
        "anna", step=10, metrics={"f1": 0.5}, promoted_metrics={"f1": 0.4}, rule="f1 > promoted"
    )
    assert promote(home, run, request, exported).compared == Compared(1, {"f1": 0.4})
    stale = Request("anna", step=10, metrics={"f1": 0.6}, promoted_metrics={"f1": 0.4}, promoted_number=1)
    with pytest.raises(
        InvalidInput, match=r"promoted_metrics are of promotion 1, but .* has promotion 2 now"
    ):
        promote(home, run, stale, exported)


def test_a_retry_finds_its_own_record(home: Store, run: Store) -> None:
    request = Request("retrain.promote", step=30, rule="accuracy > promoted", task="retrain/today/promote/-1")
    first = promote(home, run, request, exported)
    home.delete([layout.CURRENT])
    assert promote(home, run, request, exported) == first
    assert home.get(layout.CURRENT) is not None
    again = Request(
        "retrain.promote", step=30, rule="accuracy > promoted", task="retrain/tomorrow/promote/-1"
    )
    with pytest.raises(NotBetter):
        promote(home, run, again, exported)


def test_what_cannot_be_promoted(home: Store, run: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"step 7 has no committed checkpoint; there are: 10, 20, 30"):
        promote(home, run, Request("anna", step=7), exported)
    with pytest.raises(InvalidInput, match=r"has a metric 'f1'; they have: accuracy, loss"):
        promote(home, run, Request("anna", best="max f1"), exported)
    with pytest.raises(InvalidInput, match=r"the candidate has no metric 'f1'"):
        promote(home, run, Request("anna", rule="f1 > promoted"), exported)
    with pytest.raises(RunMissing, match="has no checkpoint"):
        promote(home, open_store(str(tmp_path / "nothing")), Request("anna"), exported)
    with pytest.raises(SpecError, match=r"format: given 'onnx'; allowed: one of safetensors, pt"):
        Request("anna", format="onnx")
    with pytest.raises(SpecError, match=r"metrics.accuracy: given 'high'; allowed: a number"):
        Request("anna", metrics={"accuracy": "high"})  # type: ignore[dict-item]
    home.put("notes.txt", b"somebody's")
    with pytest.raises(InvalidInput, match=r"holds no promotions \(it has 'notes.txt'\)"):
        promote(home, run, Request("anna"), exported)
    assert checkpoint_retention.pins(run) == {}


def test_go_back_and_on(home: Store, run: Store) -> None:
    with pytest.raises(RunMissing):
        rollback(home, by="bob", why=None)
    first = promote(home, run, Request("anna", step=10), exported)
    with pytest.raises(InvalidInput, match="has no earlier model"):
        rollback(home, by="bob", why=None)
    promote(home, run, Request("anna", step=20), exported)
    back = rollback(home, by="bob", why="it was trained on the test data")
    assert (back.number, back.kind, back.restores, back.replaces, back.by) == (3, "rollback", 1, 2, "bob")
    assert (back.weights, back.step, back.metrics) == (first.weights, 10, METRICS[10])
    assert promotions.current(home) == back
    with pytest.raises(InvalidInput, match="has no earlier model"):
        rollback(home, by="bob", why=None)
    promote(home, run, Request("anna", step=30), exported)
    assert rollback(home, by="bob", why=None).restores == 1, "what a rollback left behind stays behind"
    assert rollback(home, by="bob", why=None, to=2).step == 20
    with pytest.raises(InvalidInput, match=r"has no promotion 9; there are: 1, 2, 3, 4, 5, 6"):
        rollback(home, by="bob", why=None, to=9)
    with pytest.raises(InvalidInput, match=r"promotion 2 of .* has the model that is promoted now"):
        rollback(home, by="bob", why=None, to=2)


def test_a_retry_of_a_rollback_does_not_go_further_back(home: Store, run: Store) -> None:
    for step in METRICS:
        promote(home, run, Request("anna", step=step), exported)
    first = rollback(home, by="dag.back", why=None, task="dag/today/back/-1")
    assert rollback(home, by="dag.back", why=None, task="dag/today/back/-1") == first


@pytest.mark.parametrize(
    ("damage", "said"), [(b"", "does not exist"), (b"other bytes", "its bytes have changed")]
)
def test_nobody_goes_back_to_damaged_weights(home: Store, run: Store, damage: bytes, said: str) -> None:
    first = promote(home, run, Request("anna", step=10), exported)
    promote(home, run, Request("anna", step=20), exported)
    home.put(first.weights.key, damage) if damage else home.delete([first.weights.key])
    with pytest.raises(StoreError, match=said):
        rollback(home, by="bob", why=None)
    assert (promotions.current(home) or first).number == 2


def test_damaged_weights_of_a_killed_promoter_are_replaced(home: Store, run: Store) -> None:
    sha256 = hashlib.sha256(b"weights of step 30").hexdigest()
    home.put(layout.weights(sha256, ".safetensors"), b"half")
    record = promote(home, run, Request("anna"), exported)
    assert home.get(record.weights.key) == b"weights of step 30"


def test_a_pin_of_somebody_else_stays(home: Store, run: Store) -> None:
    checkpoint_retention.pin(run, 10, by="bob")
    promote(home, run, Request("anna", step=30), exported)
    with pytest.raises(NotBetter):
        promote(home, run, Request("anna", step=10, rule="accuracy > promoted"), exported)
    promote(home, run, Request("anna", step=10), exported)
    assert checkpoint_retention.pins(run)[10].by == "bob"
    saved(run, 40, accuracy=1.0)
