"""What a rank goes on from that was late for a round."""

from __future__ import annotations

from typing import Any

import torch

from airflow_elastic.runtime.collectives import local_sgd
from airflow_elastic.runtime.collectives.local_sgd import LocalSGD
from airflow_elastic.runtime.collectives.process_group import Collectives


def test_a_variance_stays_one_where_a_rank_was_late(monkeypatch: Any) -> None:
    """What a rank has done itself may be to have it go down, and so may the mean."""

    class Rounds:
        def __init__(self, *_: object) -> None: ...

        def give(self, number: int, mine: torch.Tensor) -> bool:
            self.mine = mine
            return False

        def mean(self, number: int) -> tuple[int, torch.Tensor]:
            return number, self.mine.clone()  # others are where this one is

    class Two(Collectives):
        @property
        def alone(self) -> bool:
            return False

    monkeypatch.setattr(local_sgd, "AveragingRounds", Rounds)
    monkeypatch.setattr(LocalSGD, "_take_the_first_ones", lambda _: None)
    norm = torch.nn.BatchNorm1d(2)  # whose variance begins with 1
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), norm)
    each = LocalSGD(model, (), Two(0, 2, None), step=0, every=4, patience=1.0)
    before = model[0].weight.detach().clone()
    norm.running_var.fill_(0.2)  # type: ignore[union-attr]
    with torch.no_grad():
        model[0].weight += 1.0  # type: ignore[operator]
    each.average(4)
    assert torch.equal(norm.running_var, torch.full((2,), 0.2))  # type: ignore[arg-type]
    assert torch.allclose(model[0].weight, before + 2.0)  # type: ignore[arg-type]
