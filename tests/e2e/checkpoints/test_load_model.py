"""A run's model, read where no training goes on."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import airflow_elastic.runtime as elastic
from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import InvalidInput, RunMissing
from tests.support import s3
from tests.support.training.forging import Hostile, forging
from tests.support.training.saving import SavingWorker


def network(width: int = 3, *, bias: bool = True) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, width, bias=bias), torch.nn.BatchNorm1d(width))


def save(run: str | Store, *steps: int) -> None:
    """Checkpoints whose weights are all their step."""
    store = open_store(run) if isinstance(run, str) else run
    for step in steps:
        model = network()
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, step)
        objects = Stateful(model, (torch.optim.Adam(model.parameters()),), {})
        SavingWorker(store, keep_last=9).save(objects, step, Position(), reason="steps", metrics={})


def spoil(uri: str, step: int) -> None:
    """Change one byte of each of its files."""
    store = open_store(uri)
    for file in checkpoints.read(store, step).files:
        path = store.local_path(file.key)
        assert path is not None
        path.write_bytes(path.read_bytes()[:-1] + b"!")


def weights(model: torch.nn.Module) -> set[float]:
    return {value for parameter in model.parameters() for value in parameter.flatten().tolist()}


def test_the_newest_or_the_one_that_is_named(tmp_path: Path) -> None:
    save(str(tmp_path), 10, 20)
    model = network()
    manifest = elastic.load_model(str(tmp_path), model)
    assert (manifest.step, weights(model)) == (20, {20.0})
    assert elastic.load_model(str(tmp_path), model, step=10).step == 10
    assert weights(model) == {10.0}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"AIRFLOW_ELASTIC_RUN_URI": "{}/other", "RANK": "0"}, ["run {}/other"]),
        ({"AIRFLOW_ELASTIC_RUN_URI": "{}/other", "RANK": "1"}, []),
        ({"AIRFLOW_ELASTIC_RUN_URI": "{}/run", "RANK": "0"}, []),
        ({"AIRFLOW_CTX_DAG_ID": "digits", "AIRFLOW_CTX_TASK_ID": "measure"}, ["task measure of DAG digits"]),
        ({}, []),
    ],
)
def test_another_run_or_a_task_that_loads_it_is_recorded_once(
    variables: dict[str, str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(tmp_path / "run")
    save(run, 10, 20)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    for _ in range(2):
        elastic.load_model(run, network())
    used = checkpoint_retention.all_uses(open_store(run))
    assert [one.by for one in used.get(20, ())] == [word.format(tmp_path) for word in expected]
    assert 10 not in used


def test_who_may_only_read_reads_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(str(tmp_path), 10)
    monkeypatch.setenv("AIRFLOW_ELASTIC_RUN_URI", "/elsewhere")
    (tmp_path / "checkpoints" / "uses").write_text("a file where a folder should be")
    assert elastic.load_model(str(tmp_path), network()).step == 10


def test_a_damaged_one_is_never_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(str(tmp_path), 10, 20)
    spoil(str(tmp_path), 20)
    model = network()
    with caplog.at_level(logging.WARNING):
        assert elastic.load_model(str(tmp_path), model).step == 10
    assert "checkpoint 20" in caplog.text
    with pytest.raises(CheckpointDamaged, match="its bytes have changed"):
        elastic.load_model(str(tmp_path), model, step=20)
    spoil(str(tmp_path), 10)
    with pytest.raises(CheckpointDamaged, match=r"none of the checkpoints \[10, 20\] is whole"):
        elastic.load_model(str(tmp_path), model)
    assert weights(model) == {10.0}


class Noted(torch.nn.Linear):
    """Its state is not all tensors."""

    note = "a note"

    def get_extra_state(self) -> str:
        return self.note

    def set_extra_state(self, state: Any) -> None:
        self.note = state


def save_forged(uri: str, value: Any, form: str) -> None:
    """A checkpoint as it should be, 10, and a newer one with this value in its model and all checksums, 20."""
    for step, forged in ((10, contextlib.nullcontext()), (20, forging("model._extra_state", value, form))):
        model = Noted(2, 2)
        torch.nn.init.constant_(model.weight, step)
        with forged:
            what = Stateful(model, (), {})
            SavingWorker(uri).save(what, step, Position(), reason="steps", metrics={})


@pytest.mark.parametrize("form", ["pickle", "archive"])
def test_a_hostile_one_with_all_its_checksums_is_never_unpickled(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    run, made, model = str(tmp_path / "run"), tmp_path / "made", Noted(2, 2)
    save_forged(run, Hostile(made), form)
    before = model.weight.clone()
    for step in (None, 20):
        with pytest.raises(
            InvalidInput,
            match=r"checkpoint 20 of .*model\._extra_state holds posix\.mkdir, which is not unpickled",
        ):
            elastic.load_model(run, model, step=step)
    assert (torch.equal(model.weight, before), made.exists()) == (True, False)
    assert elastic.load_model(run, model, step=10).step == 10
    assert (model.weight[0, 0].item(), model.note) == (10.0, "a note")


def test_no_checkpoint_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunMissing, match="holds no run, and no checkpoint: check the URI"):
        elastic.load_model(str(tmp_path), network())
    open_store(str(tmp_path)).put(layout.journal_entry(0), b"of a run that has just begun")
    with pytest.raises(CheckpointDamaged, match="there is no checkpoint"):
        elastic.load_model(str(tmp_path), network())


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (network(bias=False), r"the script has no model\.0\.bias"),
        (torch.nn.Sequential(*network(), torch.nn.Linear(3, 1)), r"the checkpoint has no model\.2\.bias"),
        (network(4), r"0\.weight is \(4, 2\) in the script and \(3, 2\) in the checkpoint"),
    ],
)
def test_another_model_is_refused_and_left_alone(tmp_path: Path, other: torch.nn.Module, said: str) -> None:
    save(str(tmp_path), 10)
    before = weights(other)
    with pytest.raises(InvalidInput, match=rf"^checkpoint 10 of {tmp_path} is of another model.*{said}"):
        elastic.load_model(str(tmp_path), other)
    assert weights(other) == before


def test_from_an_object_store(tmp_path: Path) -> None:
    with s3.s3_server() as server:
        store = server.store()
        save(store, 10)
        model = network()
        assert elastic.load_model(store, model).step == 10
    assert weights(model) == {10.0}
