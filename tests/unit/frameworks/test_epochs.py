"""Batches for a loop that is not ours: fetched ahead, trained on later, told when all of a step is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import airflow_elastic.runtime as elastic
from airflow_elastic.frameworks.epochs import Epochs
from airflow_elastic.runtime.data.sampler import ElasticBatches
from airflow_elastic.spec.errors import InvalidInput


@given(
    length=st.integers(1, 60),
    global_batch=st.integers(1, 40),
    world=st.integers(1, 5),
    micro_batch=st.integers(1, 9),
)
def test_in_even_pieces_each_sample_counts_the_same(
    length: int, global_batch: int, world: int, micro_batch: int
) -> None:
    counted: dict[int, float] = dict.fromkeys(range(length), 0.0)
    pieces = set()
    for rank in range(world):
        batches = ElasticBatches(
            length,
            global_batch=global_batch,
            rank=rank,
            world_size=world,
            micro_batch=micro_batch,
            even_pieces=True,
        )
        plan = list(batches.plan())
        assert len(plan) == len(batches) == len(list(batches))
        starts = [piece.start for piece in plan]
        pieces |= {starts.count(start) for start in starts}
        for samples, piece in zip(batches, plan, strict=True):
            assert len(samples) <= micro_batch
            for sample in samples:
                counted[sample] += piece.weight / len(samples) / world * piece.size
            low, high = batches.share(piece.size)
            if piece.size < global_batch and high > low:
                assert len(samples) >= (high - low) // -(-(high - low) // micro_batch), (
                    "in as few as it takes"
                )
            elif piece.size == global_batch >= world * 2:
                sizes = [each.high - each.low for each in plan if each.start == piece.start]
                assert max(sizes) - min(sizes) <= 1, "nobody waits for others"
    assert counted == pytest.approx(dict.fromkeys(range(length), 1.0))
    assert len(pieces) == 1


def ten(micro_batch: int | None = None) -> tuple[elastic.Session, Epochs]:
    run = elastic.init()
    data: Any = [torch.tensor(number) for number in range(10)]
    loader = torch.utils.data.DataLoader(data)
    return run, Epochs(run, loader, global_batch=4, micro_batch=micro_batch, shuffle=False)


def test_an_epoch_is_what_is_left_of_it() -> None:
    run, batches = ten()
    assert len(batches) == 3
    seen = []
    ahead = iter(batches)
    for _ in range(2):
        seen.append(next(ahead).tolist())
        batches.stepped(None, {})
    batches.settle()
    assert (run.steps, run.ahead) == (2, (0, 8))
    assert (len(batches), batches.given, batches.behind) == (1, 2, 0.8)
    for batch in batches:  # as whoever begins anew does
        seen.append(batch.tolist())
        batches.stepped(None, {})
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert (len(batches), batches.behind) == (3, 1.0)
    assert run.steps == 2, "what belongs to the last step of an epoch is not done yet"
    next(iter(batches))
    assert run.steps == 3


def test_pieces_may_be_fetched_ahead() -> None:
    run, batches = ten(micro_batch=2)
    assert batches.pieces == 2
    ahead = iter(batches)
    assert [next(ahead).tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [batches.weight() for _ in range(4)] == [1.0] * 4
    batches.stepped(None, {})
    assert run.steps == 0
    batches.settle()
    batches.settle()
    assert (run.steps, run.ahead) == (1, (0, 8))
    assert [batch.tolist() for batch in ahead] == [[8, 9], [8, 9]]
    assert [batches.weight() for _ in range(2)] == [2.0, 0.0], "a batch norm can do nothing with one sample"


def test_what_only_fills_up_counts_nothing() -> None:
    run = elastic.init()
    data: Any = [torch.tensor(number) for number in range(5)]
    loader = torch.utils.data.DataLoader(data)
    batches = Epochs(run, loader, global_batch=4, micro_batch=2, shuffle=False, blank=lambda batch: None)
    assert [batch if batch is None else batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4], None]
    assert [batches.weight() for _ in range(4)] == [1.0, 1.0, 2.0, 0.0]


def test_fetching_is_as_the_loader_that_it_replaces_would() -> None:
    data: Any = [torch.tensor(number) for number in range(4)]
    theirs = torch.utils.data.DataLoader(data, collate_fn=lambda items: [int(one) + 1 for one in items])
    run, _ = ten()
    assert list(Epochs(run, theirs, global_batch=4, micro_batch=None, shuffle=False)) == [[1, 2, 3, 4]]


def test_data_without_an_index_is_refused() -> None:
    run, _ = ten()

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(InvalidInput, match="given Stream, which has no length or no index"):
        Epochs(run, torch.utils.data.DataLoader(Stream()), global_batch=4, micro_batch=None)
    with pytest.raises(InvalidInput, match="given list; allowed: one torch"):
        Epochs(run, [1, 2], global_batch=4, micro_batch=None)


def test_steps_that_are_left_are_those_of_the_data_as_it_is() -> None:
    run, batches = ten()
    assert [batches.left(epochs) for epochs in (1, 2, 1.5, 0.1)] == [3, 6, 5, 1]
    given = iter(batches)
    for _ in range(2):
        next(given)
        batches.weight()
        batches.stepped(None, {})
    batches.settle()
    assert [batches.left(epochs) for epochs in (1, 2, 0.1)] == [1, 4, 0]
    assert run.steps == 2


def test_a_step_that_is_left_of_another_global_batch_counts() -> None:
    """Half of an epoch was consumed in larger ones, and what is left is no multiple of theirs."""
    run, batches = ten()
    run._feed.position = replace(run._feed.position, epoch=0, offset=5)
    assert (len(batches), batches.left(1)) == (2, 2)
