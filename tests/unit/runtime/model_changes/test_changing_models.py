"""A model or optimizers whose shape changes while they are trained: saved as they are, and gone on from to the bit."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.model_changes.rebuild import rebuilt, replaced
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.resumed import Resumed
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import together
from tests.support.training.changing import CHANGED, KINDS, Dropped, GroupAdded, Swapped, Training
from tests.support.training.optimizers import equal
from tests.support.training.saving import SavingWorker, restorer

END = 7


def hook(training: Training) -> Any:
    def rebuild(resumed: Resumed) -> Any:
        if resumed.step > CHANGED:
            training.change()
            return training.optimizers if isinstance(training, Swapped) else None
        return None

    return rebuild


def begun(training: Training, step: int | None = None, rebuild: Any = None) -> Stateful:
    facts = None if step is None else Resumed(step)
    return rebuilt(
        training.net, training.optimizers, {}, frozenset(), rebuild or hook(training), lambda: facts
    )


def saved(kind: type[Training], run: Path, *, overlap: bool = False) -> None:
    """All states of a training from the first step on, until it dies in the step before its last."""
    policy = CheckpointPolicy(keep_last=END, overlap=overlap)
    worker, training = SavingWorker(str(run), policy=policy), kind()
    objects = begun(training)
    worker.saver.attend(objects.stepping)

    def swapped() -> None:  # as run.replace
        nonlocal objects
        worker.saver.join()
        objects = replaced(objects, None, training.optimizers, {})
        worker.saver.attend(objects.stepping)

    def stepped(step: int) -> None:
        settle()  # with overlap, what was copied while this step was made
        assert worker.saver.save(objects, step, Position(), reason="steps", metrics={})
        if not overlap:
            settle()

    def settle() -> None:
        worker.saver.join()
        worker.persister.flush()

    if isinstance(training, Swapped):
        training.changed = swapped
    training.run(0, END - 1, stepped)
    settle()


@pytest.mark.parametrize("kind", KINDS)
def test_goes_on_to_the_bit_from_before_and_from_after_the_change(
    kind: type[Training], tmp_path: Path
) -> None:
    straight = kind()
    straight.run(0, END)
    saved(kind, tmp_path / "run")
    for step in (END - 1, CHANGED + 1, CHANGED, 1):
        for later in sorted((tmp_path / "run/checkpoints/manifests").glob("*.json"))[step:]:
            later.unlink()
        training = kind()
        objects = begun(training, step)
        manifest = restorer(tmp_path / "run").restore(objects)
        assert manifest
        assert manifest.step == step
        training.run(step, END)
        assert equal(training.net.state_dict(), straight.net.state_dict()), f"from step {step}"


@pytest.mark.parametrize("kind", KINDS)
def test_while_it_is_copied_too(kind: type[Training], tmp_path: Path) -> None:
    straight = kind()
    straight.run(0, END)
    saved(kind, tmp_path / "run", overlap=True)
    training = kind()
    manifest = restorer(tmp_path / "run").restore(begun(training, END - 1))
    assert manifest
    training.run(manifest.step, END)
    assert equal(training.net.state_dict(), straight.net.state_dict())


def test_without_the_hook_it_is_said_what_to_do(tmp_path: Path) -> None:
    saved(GroupAdded, tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"the script has no optimizer\.state\.body.*rebuild=fn"):
        restorer(tmp_path / "run").restore(begun(GroupAdded(), END - 1, lambda resumed: None))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (torch.nn.Linear(1, 1), "returned a Linear: change the model that run.restore is given in place"),
        ({"a": 1}, "returned a dict; allowed: None, or the optimizers"),
        ([1], "returned a int; allowed"),
    ],
)
def test_what_the_hook_returns_wrong_is_refused(returned: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        begun(Dropped(), 1, lambda resumed: returned)


def test_a_hook_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="rebuild: given a int; allowed: a function"):
        begun(Dropped(), 1, 3)


def test_what_is_no_part_of_the_model_and_trained_on_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its optimizer may have a parameter that the model has no more, as long as it leaves that as it is."""
    caplog.set_level(logging.INFO)
    worker, training = SavingWorker(str(tmp_path / "run")), Dropped()
    objects, gone = begun(training), training.net.more.weight
    training.run(0, CHANGED + 1)
    worker.save(objects, 1, Position(), reason="script", metrics={})
    assert "no part of the model any more" in caplog.text
    worker.save(objects, 2, Position(), reason="script", metrics={})
    gone.grad = torch.ones_like(gone)
    training.optimizers[0].step()
    with pytest.raises(InvalidInput, match=r"still changes a parameter of the shape \(4, 4\)"):
        worker.save(objects, 3, Position(), reason="script", metrics={})


def test_what_was_never_the_models_is_refused_with_the_save(tmp_path: Path) -> None:
    worker, training = SavingWorker(str(tmp_path / "run")), GroupAdded()
    objects = begun(training)
    training.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    with pytest.raises(InvalidInput, match=r"1 parameters that are not the model's, of the shapes \(3,\)"):
        worker.save(objects, 1, Position(), reason="script", metrics={})


def test_a_change_on_one_rank_alone_is_refused_with_the_save(tmp_path: Path) -> None:
    """Each rank decides by names and sizes what is its own to write: some of it would be written by nobody."""
    runs = [SavingWorker(str(tmp_path / "run"), index=index, of=2) for index in range(2)]
    said: list[str] = []

    def rank(ranks: Any) -> None:
        training, worker = GroupAdded(), runs[ranks.rank]
        worker.saver._ranks = ranks
        objects = begun(training)
        for step in range(1, 6):
            if step == 5 and ranks.rank == 1:
                training.net.head.register_parameter("scale", torch.nn.Parameter(torch.ones(2)))
            try:
                worker.saver.save(objects, step, Position(), reason="memory", metrics={})
            except InvalidInput as error:
                said.append(str(error))

    together(2, rank)
    assert len(said) == 2
    assert "For model.head.scale, rank 0 has nothing" in said[0]
