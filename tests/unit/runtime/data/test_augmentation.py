"""What is drawn at random for a sample is the same whichever worker fetches it, for whichever rank, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from airflow_elastic.runtime.checkpoint.save import random_state
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data.indexed import epoch_of
from airflow_elastic.runtime.data.sampler import ElasticBatches
from airflow_elastic.runtime.data.stream import Plan, ShardedStream
from airflow_elastic.runtime.data.stream import epoch_of as stream_epoch_of

#: A sample, and what Python's, torch's and numpy's generators drew for it.
Drawn = tuple[int, float, float, float]

LENGTH = 26


def drawn(sample: int) -> Drawn:
    return sample, random.random(), float(torch.rand(())), float(np.random.rand())


class Augmented(Dataset[Drawn]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Drawn:
        return drawn(index)


class AtOnce(Augmented):
    """Fetches all samples of a piece with one call, as those of Hugging Face do."""

    def __getitems__(self, indices: list[int]) -> list[Drawn]:
        return [drawn(index) for index in indices]


def fetched(
    world: int = 1,
    workers: int = 1,
    data: Dataset[Drawn] | None = None,
    account: bool = False,
    offset: int = 0,
    **order: int,
) -> list[Drawn]:
    """All that ranks are given of what is left of an epoch, by sample."""
    options = {"num_workers": workers, "collate_fn": list, "multiprocessing_context": "forkserver"}
    found = set()
    for rank in range(world):
        batches = ElasticBatches(LENGTH, global_batch=8, rank=rank, world_size=world, offset=offset, **order)
        for portion in epoch_of(data or Augmented(), batches, 0, options=options, account=account):
            found.update(portion.content)
    return sorted(found)


@pytest.mark.parametrize(
    "change",
    [
        {"workers": 3},
        {"world": 3},
        {"micro_batch": 3},
        {"account": True},
        {"data": Subset(Augmented(), range(26))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_of_data_with_an_index_it_depends_on_the_sample_alone(change: dict[str, Any]) -> None:
    assert fetched(**change) == fetched()


def test_an_epoch_that_is_gone_on_with_draws_what_it_would_have_drawn() -> None:
    undisturbed = {one[0]: one for one in fetched()}
    rest = fetched(offset=16, world=2, workers=2)
    assert len(rest) == LENGTH - 16
    assert rest == [undisturbed[sample] for sample, *_ in rest]


def test_samples_epochs_and_seeds_draw_different_numbers() -> None:
    numbers = [one[1:] for order in ({}, {"epoch": 1}, {"seed": 1}) for one in fetched(**order)]
    for generator in zip(*numbers, strict=True):
        assert len(set(generator)) == 3 * LENGTH


@pytest.mark.parametrize("account", [False, True])
def test_data_that_fetches_a_piece_at_once_draws_the_same_for_the_same_piece(account: bool) -> None:
    first = fetched(data=AtOnce(), account=account)
    assert fetched(data=AtOnce(), workers=2) == first
    assert set(fetched(data=AtOnce(), offset=16)) < set(first)


class Opened(Augmented):
    """Gives what a worker began with, which it is told by the script's `worker_init_fn`."""

    opened = "nothing"

    def __getitem__(self, index: int) -> Any:
        return self.opened


def open_it(worker: int) -> None:
    get_worker_info().dataset.opened = f"by worker {worker}"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("context", "account"), [("forkserver", False), ("forkserver", True), ("spawn", False)]
)
def test_the_script_has_its_say_when_a_worker_begins(context: str, account: bool) -> None:
    options = {"num_workers": 1, "worker_init_fn": open_it, "multiprocessing_context": context}
    batches = ElasticBatches(2, global_batch=2)
    (portion,) = epoch_of(Opened(), batches, 0, options=options, account=account)
    assert portion.content == ["by worker 0"] * 2


# -- streams ---------------------------------------------------------------------------------------------------------

LENGTHS = [5, 0, 9, 3, 7]


def read(shard: int, offset: int) -> Iterator[Drawn]:
    return (drawn(100 * shard + number) for number in range(offset, LENGTHS[shard]))


def streamed(workers: int = 0, batches: int = 10**6, stream: ShardedStream | None = None) -> list[Drawn]:
    """What one rank is given of the next global batches of an epoch, by sample."""
    options: dict[str, Any] = {"num_workers": workers, "collate_fn": list}
    if workers:
        options["multiprocessing_context"] = "forkserver"
    plan = Plan(4, None, seed=3, shuffle=True, options=options)
    stream = stream or ShardedStream(range(len(LENGTHS)), read, lanes=3)
    found: list[Drawn] = []
    for portion in islice(
        stream_epoch_of(stream, stream.spot, 0, plan, Collectives(0, 1, None), account=False), batches
    ):
        found += portion.content
        assert portion.completes
        assert portion.completes.done
        portion.completes.done()
    return sorted(found)


def test_of_a_stream_it_depends_on_the_place_in_the_shard_alone() -> None:
    whole = streamed()
    assert len({one[1:] for one in whole}) == len(whole) == sum(LENGTHS)
    assert streamed(workers=1) == streamed(workers=2) == whole
    stream = ShardedStream(range(len(LENGTHS)), read, lanes=3)
    begun = streamed(batches=2, stream=stream)
    assert sorted(begun + streamed(stream=stream, workers=1)) == whole


def test_what_a_stream_reads_ahead_draws_nothing_from_the_ranks_own_generators() -> None:
    random_state.seed(1)
    before = drawn(0)
    random_state.seed(1)
    streamed()
    assert drawn(0) == before
