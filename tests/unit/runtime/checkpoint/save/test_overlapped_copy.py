"""What is copied while training goes on is what it was when the step was done, or is not saved at all."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.layout import Layout
from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import ElasticError, InvalidInput
from tests.support.machine.threads import process_group
from tests.support.training.saving import SavingWorker

OVERLAP = CheckpointPolicy(overlap=True)


class Training:
    """A model with a buffer, and a worker that saves it."""

    def __init__(self, uri: Path, device: str = "cpu") -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.BatchNorm1d(30)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.objects = Stateful(self.model, (self.optimizer,), {})
        self.worker = SavingWorker(str(uri))
        self.saver = Saver(
            Collectives(0, 1, None),
            generation=1,
            stage=self.worker.stage,
            words=self.worker.words,
            policy=OVERLAP,
        )
        self.saver.attend([self.optimizer])
        self.device, self.uri = device, uri
        self.backward()
        self.optimizer.step()

    def backward(self) -> None:
        self.model(torch.randn(8, 30, device=self.device)).square().sum().backward()

    def save(self, step: int) -> bool:
        return self.saver.save(self.objects, step, Position(), reason="steps", metrics={})

    def state(self) -> dict[str, torch.Tensor]:
        moments = {i: one["exp_avg"] for i, one in enumerate(self.optimizer.state.values())}
        both = {**self.model.state_dict(), **{f"moment {i}": moment for i, moment in moments.items()}}
        return {name: value.clone() for name, value in both.items()}

    def restored(self) -> dict[str, torch.Tensor]:
        other = Training(self.uri, self.device)
        room = WorkerCache(self.uri / "room", 1)
        Restorer(self.worker.store, Collectives(0, 1, None), attempt=2, room=room).restore(other.objects)
        return other.state()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Copies wait until this is set."""
    go, copy = threading.Event(), Layout.copy_slow

    def slow(self: Layout, memory: memoryview, device: torch.device) -> None:
        assert go.wait(60)
        copy(self, memory, device)

    monkeypatch.setattr(Layout, "copy_slow", slow)
    return go


DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


@pytest.mark.parametrize("device", DEVICES)
def test_the_optimizer_waits_for_the_copy_and_nobody_else_does(
    tmp_path: Path, held: threading.Event, device: str
) -> None:
    training = Training(tmp_path, device)
    expected = training.state()
    assert training.save(1)
    training.backward()  # changes the buffer
    assert not same(training.state(), expected)
    step = threading.Thread(target=training.optimizer.step)
    step.start()
    step.join(0.2)
    assert step.is_alive(), "the optimizer has not waited"
    held.set()
    step.join(60)
    training.saver.join()
    training.worker.persister.flush()
    assert same(training.restored(), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_every_save_of_a_training_is_what_it_was(tmp_path: Path, device: str) -> None:
    training = Training(tmp_path, device)
    for number in range(1, 20):
        expected = training.state()
        assert training.save(number)
        for _ in range(2):
            training.backward()
            training.optimizer.step()
        training.saver.join()
        training.worker.persister.flush()
        assert max(checkpoints.steps(training.worker.store)) == number
        assert same(training.restored(), expected)


def test_a_script_that_changes_weights_meanwhile_is_told_and_nothing_of_it_is_saved(
    tmp_path: Path, held: threading.Event
) -> None:
    training = Training(tmp_path)
    assert training.save(1)
    with torch.no_grad():
        training.model[0].weight.mul_(2.0)
    held.set()
    with pytest.raises(InvalidInput, match=r"outside of an optimizer's step.*checkpoint\.overlap"):
        training.optimizer.step()
    with pytest.raises(InvalidInput, match="outside of an optimizer's step"):
        training.saver.join()
    training.worker.persister.flush()
    assert checkpoints.steps(training.worker.store) == []


def test_what_the_forward_pass_changes_is_copied_before_whatever_it_is_called(
    tmp_path: Path, held: threading.Event
) -> None:
    """A module may say its buffers by other names than they have in it."""

    def renamed(module: torch.nn.Module, state: dict[str, torch.Tensor], prefix: str, _: object) -> None:
        state[f"{prefix}mean"] = state.pop(f"{prefix}running_mean")

    training = Training(tmp_path)
    training.model[1].register_state_dict_post_hook(renamed)
    assert training.save(1)
    training.backward()
    held.set()
    training.optimizer.step()
    training.saver.join()
    training.worker.persister.flush()
    assert checkpoints.steps(training.worker.store) == [1]


def test_what_a_script_gives_other_memory_meanwhile_is_saved_as_it_was(
    tmp_path: Path, held: threading.Event
) -> None:
    """Through `.data`, which torch does not count: as scripts do that keep states of optimizers elsewhere."""
    training = Training(tmp_path)
    training.model[0].bias.requires_grad_(False)
    expected = training.state()
    assert training.save(1)
    training.model[0].bias.data = training.model[0].bias.data.double()
    former = []
    for kept in training.optimizer.state.values():
        former.append(weakref.ref(kept["exp_avg"].untyped_storage()))
        kept["exp_avg"].data = torch.full_like(kept["exp_avg"], -1.0)
    held.set()
    training.saver._copying._thread.join()  # type: ignore[union-attr]
    assert not any(one() for one in former), "memory that the script has let go of is held"
    training.saver.join()
    training.worker.persister.flush()
    assert same(training.restored(), expected)


def test_what_cannot_be_copied_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path)

    def refuse(self: Layout, memory: memoryview, device: torch.device) -> None:
        raise RuntimeError("no copy engine")

    monkeypatch.setattr(Layout, "copy_slow", refuse)
    assert training.save(1)
    with pytest.raises(ElasticError, match="could not be copied: no copy engine"):
        training.optimizer.step()
    with pytest.raises(ElasticError, match="no copy engine"):
        training.saver.join()
    assert [slot.hold() for slot in training.worker.node.slots.of[0]] == [True, True], (
        "a slot is held for ever"
    )


def test_a_save_that_was_asked_for_is_not_left_to_later(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.saver.save(training.objects, 1, Position(), reason="requested", metrics={})
    with torch.no_grad():
        training.model[0].weight.mul_(2.0)
    training.optimizer.step()
    training.worker.persister.flush()
    assert checkpoints.steps(training.worker.store) == [1]


def test_an_optimizer_that_cannot_wait_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrapper:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    training = Training(tmp_path)
    saver = Saver(
        Collectives(0, 1, None),
        generation=1,
        stage=training.worker.stage,
        words=training.worker.words,
        policy=OVERLAP,
    )
    saver.attend([Wrapper(training.optimizer)])
    assert not caplog.records, "the one inside can"
    saver.attend([object()])
    assert "training waits for each copy" in caplog.text


def test_changes_of_a_sharded_weight_are_noticed_too(tmp_path: Path, held: threading.Event) -> None:
    with process_group():
        training = Training(tmp_path)
        fully_shard(training.model)
        training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=0.1)
        training.objects = Stateful(training.model, (training.optimizer,), {})
        training.saver.attend([training.optimizer])
        training.backward()
        training.optimizer.step()
        assert training.save(1)
        with torch.no_grad():
            training.model[0].weight.mul_(2.0)
        held.set()
        with pytest.raises(InvalidInput, match="outside of an optimizer's step"):
            training.optimizer.step()
