"""Objects whose state is each rank's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from airflow_elastic.runtime.checkpoint.save.per_rank_state import PerRankState, per_rank_if_needed
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.errors import InvalidInput

ALONE = Collectives(0, 1, None)


def loader() -> StatefulDataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    return StatefulDataLoader(range(20), batch_size=3, shuffle=True, num_workers=1, generator=generator)


def batches(loader: StatefulDataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def test_a_loader_goes_on_with_what_was_not_given_yet() -> None:
    whole = loader()
    epochs = [batches(whole), batches(whole)]
    first = loader()
    given = iter(first)
    seen = [next(given).tolist() for _ in range(4)]
    state = per_rank_if_needed(first, ALONE).state_dict()
    second = loader()
    per_rank_if_needed(second, ALONE).load_state_dict(state)
    assert [seen + batches(second), batches(second)] == epochs


def test_at_another_world_size_it_is_refused() -> None:
    state = {"ranks": [PerRankState(loader(), ALONE).state_dict()["ranks"][0]] * 2}
    with pytest.raises(
        InvalidInput, match=r"StatefulDataLoader was saved by 2 ranks, and there are 1: .* run\.loader"
    ):
        per_rank_if_needed(loader(), ALONE).load_state_dict(state)


def test_what_all_ranks_have_alike_stays_as_it_is() -> None:
    for other in (torch.optim.lr_scheduler.LRScheduler, torch.utils.data.DataLoader(range(3)), json):
        assert per_rank_if_needed(other, ALONE) is other
