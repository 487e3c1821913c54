"""What a checkpoint holds once for all ranks is the same on all of them, or that is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from airflow_elastic.runtime.checkpoint.save.replica_check import COMPARED, ReplicaCheck
from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import together
from tests.support.training.saving import SavingWorker


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    random = torch.rand(4, 6, generator=generator)
    return {
        "model.a": random,
        "model.strided": random.t(),
        "model.column": random[:, 0],
        "model.expanded": torch.ones(1).expand(5),
        "model.none": torch.empty(0),
        "model.half": random.bfloat16(),
        "model.flags": random > 0.5,
        "model.waves": torch.complex(random, random),
        "model.turned": torch.complex(random, random).conj(),
        "optimizer.step": torch.tensor(7.0),
    }


def found(each: list[dict[str, torch.Tensor]]) -> list[bool]:
    return together(len(each), lambda ranks: ReplicaCheck(each[ranks.rank], ranks).result())


def test_replicas_are_alike(caplog: pytest.LogCaptureFixture) -> None:
    assert found([tensors() for _ in range(3)]) == [True] * 3
    assert ReplicaCheck(tensors(), Collectives(0, 1, None)).result()
    assert caplog.text == ""


@pytest.mark.parametrize("name", [name for name, one in tensors().items() if one.numel()])
def test_a_bit_that_differs_on_any_rank_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    each = [tensors() for _ in range(3)]
    other = each[2][name].clone(memory_format=torch.contiguous_format)
    other.view(-1)[-1] = ~other.view(-1)[-1] if other.dtype is torch.bool else other.view(-1)[-1] + 1
    each[2][name] = other
    assert found(each) == [False] * 3
    assert f"ranks differ in 1 of 10 tensors that are not sharded ({name})" in caplog.text


@pytest.mark.parametrize("turned", [False, True])
def test_values_all_over_a_large_tensor_are_compared(turned: bool, caplog: pytest.LogCaptureFixture) -> None:
    rows = 100
    each = [torch.zeros(rows, 3 * COMPARED) for _ in range(2)]
    if turned:
        each = [one.t() for one in each]
    for row in (0, rows // 2, rows - 1):
        each[1].select(int(turned), row).fill_(1.0)  # as when only some rows of an embedding were used
        assert found([{"model.a": one} for one in each]) == [False] * 2
        each[1].zero_()
        assert found([{"model.a": one} for one in each]) == [True] * 2


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            torch.ones(4, 7),
            r"For model.a, rank 0 has \(4, 6\) of torch.float32, rank 1 has \(4, 7\) of torch.float32",
        ),
        (torch.ones(4, 6).double(), r"rank 1 has \(4, 6\) of torch.float64"),
        (
            None,
            r"ranks do not have the same state: model.a. .* rank 1 has nothing\. .* shard them as DTensors",
        ),
    ],
)
def test_other_tensors_are_refused_on_all_ranks(other: torch.Tensor | None, said: str) -> None:
    each = [tensors(), tensors()]
    del each[1]["model.a"]
    if other is not None:
        each[1]["model.a"] = other

    def told(ranks: Collectives) -> str:
        with pytest.raises(InvalidInput, match=said) as raised:
            ReplicaCheck(each[ranks.rank], ranks)
        return str(raised.value)

    first, second = together(2, told)
    assert first == second is not None


def test_a_save_of_ranks_that_train_by_themselves_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [SavingWorker(str(tmp_path), index=index, of=2) for index in range(2)]
    models = [torch.nn.Linear(3, 2) for _ in range(2)]

    def save(ranks: Collectives) -> None:
        worker = workers[ranks.rank]
        saver = Saver(ranks, generation=1, stage=worker.stage, words=worker.words)
        for step in (1, 2):
            saver.save(Stateful(models[ranks.rank], (), {}), step, Position(), reason="memory", metrics={})

    together(2, save)
    told = [record for record in caplog.records if "ranks differ in 2 of 2" in record.getMessage()]
    assert len(told) == 2, "each rank says so once"


def test_what_optimizers_had_not_yet_with_the_first_save_is_compared_with_the_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [SavingWorker(str(tmp_path), index=index, of=2) for index in range(2)]

    def save(ranks: Collectives) -> None:
        worker = workers[ranks.rank]
        saver = Saver(ranks, generation=1, stage=worker.stage, words=worker.words)
        weight = torch.nn.Parameter(torch.ones(3))
        model = torch.nn.ParameterDict({"weight": weight})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
        for step in (1, 2):
            saver.save(Stateful(model, (optimizer,), {}), step, Position(), reason="memory", metrics={})
            weight.grad = torch.full((3,), 1.0 + ranks.rank)
            optimizer.step()

    together(2, save)
    told = [record.getMessage() for record in caplog.records if "ranks differ" in record.getMessage()]
    assert len(told) == 2
    assert all("ranks differ in 1 of 2 tensors" in one and "momentum_buffer" in one for one in told)


def test_beside_training_values_are_compared_with_the_next_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are those of the save before, whatever training has done to them since."""
    workers = [SavingWorker(str(tmp_path), index=index, of=2) for index in range(2)]
    told: list[list[str]] = []

    def save(ranks: Collectives) -> None:
        worker, policy = workers[ranks.rank], CheckpointPolicy(overlap=True)
        saver = Saver(ranks, generation=1, stage=worker.stage, words=worker.words, policy=policy)
        model = torch.nn.ParameterDict({"weight": torch.nn.Parameter(torch.full((3,), float(ranks.rank)))})
        for step in (1, 2):
            saver.save(Stateful(model, (), {}), step, Position(), reason="memory", metrics={})
            saver.join()
            ranks.barrier()
            with torch.no_grad():
                model["weight"].fill_(7.0)
            if ranks.rank == 0:
                told.append(
                    [one.getMessage() for one in caplog.records if "ranks differ" in one.getMessage()]
                )
            ranks.barrier()  # nobody begins the next save before

    together(2, save)
    assert [len(each) for each in told] == [0, 2]
