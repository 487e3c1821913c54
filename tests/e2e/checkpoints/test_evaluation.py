"""A run that evaluates a checkpoint: it loads it, saves nothing, and its metrics are kept beside the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.models import Request, TorchExporter, promote
from airflow_elastic.control.models.choose import choose
from airflow_elastic.control.models.evaluations import let_go, note
from airflow_elastic.control.runs import Run
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.models import layout as of_models
from airflow_elastic.spec.models.start import StartFrom
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from tests.support.driving import SCRIPTS, driving
from tests.support.training.saving import network, save


async def evaluated(uri: Path, width: int, start: StartFrom, *words: str, **changes: Any) -> RunState:
    command = (str(SCRIPTS / "evaluate.py"), f"--width={width}", *words)
    restart = RestartPolicy(backoff_limit=2, backoff_seconds=0.1)
    spec = RunSpec(command, start_from=start, evaluation=True, restart=restart, **changes)
    async with driving(uri, spec) as one:
        return await one.end()


def metrics(uri: Path) -> Any:
    run = Run(open_store(str(uri)))
    progress = run.progress(run.state)
    assert progress is not None
    return progress.metrics


@pytest.fixture
def source(tmp_path: Path) -> Store:
    """A run with two checkpoints of models of different widths."""
    for step in (5, 9):
        save(tmp_path / "source", step, network(step))
    return open_store(str(tmp_path / "source"))


def total(store: Store, step: int, tmp_path: Path) -> float:
    import torch

    TorchExporter()(store, step, tmp_path / "weights.pt")
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    return sum(float(one.sum()) for one in weights.values())


async def test_a_checkpoint_is_measured_and_nothing_is_saved(source: Store, tmp_path: Path) -> None:
    uri = tmp_path / "evaluation"
    start = StartFrom(source.uri, step=5)
    state = await evaluated(uri, 5, start, "--fail-first", workers=Workers(2))
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    told = metrics(uri)
    assert told["total"] == pytest.approx(total(source, 5, tmp_path))
    assert told["ranks"] == 2
    here = open_store(str(uri))
    assert checkpoints.steps(here) == []
    assert here.list("checkpoints/") == []
    assert list(checkpoint_retention.pins(source)) == [5]

    origin = state.origin
    assert origin is not None
    note(origin, told, open_store, by=str(uri))
    note(origin, told, open_store, by=str(uri))
    let_go(origin, open_store, by=str(uri))
    assert checkpoint_retention.pins(source) == {}
    manifest = checkpoints.read(source, 5)
    assert checkpoint_retention.measured(source, manifest) == {**manifest.metrics, **told}
    assert choose(source, best="max total").step == 5


async def test_a_promoted_model_is_measured(source: Store, tmp_path: Path) -> None:
    model, uri = open_store(str(tmp_path / "models")), tmp_path / "evaluation"
    promote(model, source, Request("anna", step=9), TorchExporter())
    state = await evaluated(uri, 9, StartFrom(model.uri))
    assert state.outcome == "succeeded", state.reason
    assert state.origin is not None
    note(state.origin, metrics(uri), open_store, by=str(uri))
    let_go(state.origin, open_store, by=str(uri))
    (told,) = checkpoint_retention.evaluations(model, of_models.evaluations(1))
    assert told.metrics["total"] == pytest.approx(total(source, 9, tmp_path))
    assert list(checkpoint_retention.pins(source)) == [9], "that of the promotion stays"


def test_an_evaluation_says_of_what() -> None:
    with pytest.raises(SpecError, match="evaluation: given True; allowed: none without start_from"):
        RunSpec(("evaluate.py",), evaluation=True)
