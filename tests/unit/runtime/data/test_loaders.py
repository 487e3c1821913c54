"""A loader gives what is stepped with, and nothing ahead of it counts; what it could not go on with is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data.share import DataShare
from airflow_elastic.spec.errors import InvalidInput
from tests.support.training.streams import stream_of


class Endless(torch.utils.data.IterableDataset[int]):
    """Has neither shards nor an offset."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def feed() -> DataShare:
    return DataShare(Collectives(0, 1, None), None, lambda steps: None)


def loaded(feed: DataShare, data: Any, **changes: Any) -> Iterator[Any]:
    options: dict[str, Any] = {"epochs": 1, "seed": 0, "shuffle": False, "micro_batch": None}
    options |= {"dynamic": False, "even_pieces": False, "options": {}}
    return feed.batches(data, **{"global_batch": 6, **options, **changes})


def test_what_cannot_be_gone_on_with_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Endless has no length and no index"):
        loaded(feed(), Endless())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"options": {"batch_size": 3}}, r"batch_size: given 3; allowed: nothing\. .* micro_batch"),
        ({"options": {"sampler": [1]}}, r"sampler: given \[1\]; allowed: nothing\. .* seed and shuffle"),
        ({"options": {"drop_last": True}}, "drop_last: given True; allowed: nothing"),
        ({"global_batch": 0}, "global_batch: given 0; allowed: a whole number from 1"),
        ({"global_batch": "4"}, "global_batch: given '4'"),
        ({"micro_batch": 0}, "micro_batch: given 0"),
        ({"epochs": 1.5}, r"epochs: given 1\.5; allowed: a whole number from 0"),
        ({"seed": None}, "seed: given None; allowed: a whole number$"),
        (
            {"global_batch": 10**30},
            "global_batch: given 10*; allowed: at most 9223372036854775807: it is kept in 64",
        ),
        ({"global_batch": 10**5000}, "global_batch: given int of thousands of digits; allowed: at most"),
        ({"micro_batch": 10**30}, "micro_batch: given 10*; allowed: at most 9223372036854775807: "),
        ({"epochs": 10**30}, "epochs: given 10*; allowed: at most 9223372036854775807: "),
        ({"epochs": None, "epoch": 10**30}, "epoch: given 10*; allowed: at most 9223372036854775807: "),
        (
            {"seed": 2**64},
            "seed: given .*; allowed: -9223372036854775808 to 18446744073709551615: torch's gen",
        ),
        ({"seed": -(2**63) - 1}, "seed: given .*; allowed: -9223372036854775808 to 18446744073709551615: "),
    ],
)
def test_what_a_loader_cannot_be_told_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^run\.loader: {said}"):
        loaded(feed(), torch.arange(15), **given)


def test_a_loader_may_be_told_what_is_so_anyway() -> None:
    usual = {"drop_last": False, "sampler": None, "batch_sampler": None, "batch_size": 1}
    numbers = {"global_batch": numpy.int64(6), "micro_batch": torch.tensor(6), "epochs": numpy.int32(1)}
    assert len(list(loaded(feed(), torch.arange(15), options=usual, **numbers))) == 3


def test_the_position_is_of_what_was_stepped_with_not_of_what_was_fetched() -> None:
    one, data = feed(), torch.arange(15)
    batches = loaded(one, data)
    for _ in range(3):
        next(batches)
    assert one.position.offset == 0
    for step, offset in enumerate((6, 12, 15), 1):
        one.stepped(step)
        assert (one.position.offset, one.position.samples) == (offset, offset)
    one.stepped(4)  # a step of the script's own
    assert one.position.samples == 15


def test_a_step_that_is_not_due_is_refused() -> None:
    one = feed()
    batches = loaded(one, torch.arange(15), micro_batch=4)
    assert (len(next(batches)), one.step_due, one.weight) == (3, False, 0.5)
    with pytest.raises(InvalidInput, match=r"run\.step_due"):
        one.stepped(1)
    assert (len(next(batches)), one.step_due) == (3, True)
    one.stepped(1)
    assert one.position.offset == 6


@pytest.mark.parametrize("several", [2, 4])
def test_a_script_that_tells_of_fewer_steps_than_it_gets_batches_is_refused(several: int) -> None:
    """Its position would stay behind, and what it has trained on would come again after a restart."""
    one = feed()

    def train() -> None:
        for number, _ in enumerate(loaded(one, torch.arange(6 * 500)), 1):
            if number % several == 0:
                one.stepped(number)

    with pytest.raises(
        InvalidInput, match=r"given [12]\d\d global batches, .* To accumulate gradients of several"
    ):
        train()


def test_of_pieces_that_are_handed_out_as_ranks_come_all_steps_are_to_be_told() -> None:
    one = feed()

    def train() -> None:
        for number, _ in enumerate(loaded(one, torch.arange(6 * 500), micro_batch=6, dynamic=True), 1):
            one.finish_piece()
            if number % 4 == 0:
                one.stepped(number)

    with pytest.raises(InvalidInput, match=r"given 1[67]. global batches"):
        train()


def test_steps_that_are_not_told_in_one_epoch_are_counted_in_the_next() -> None:
    """Of a script with a loader for each, all of which are short."""
    one = feed()

    def train() -> None:
        for epoch in range(100):
            for number, _ in enumerate(loaded(one, torch.arange(6 * 30), epochs=epoch + 1), 1):
                if number % 4 == 0:
                    one.stepped(number)

    with pytest.raises(InvalidInput, match=r"given 1[67]. global batches"):
        train()


def test_what_a_loader_has_fetched_ahead_when_it_is_left_was_not_given() -> None:
    one, steps = feed(), 0
    while steps < 1000:
        batches = loaded(one, torch.arange(6 * 1000))
        ahead = [next(batches) for _ in range(4)]
        for _ in range(10):
            steps += 1
            one.stepped(steps)
            ahead.append(next(batches, None))
    assert one.position.samples == 6000


def test_whoever_looks_at_the_data_before_each_epoch_is_not_refused() -> None:
    one, data, steps = feed(), torch.arange(6 * 100), 0
    for epoch in range(6):
        assert len(list(loaded(one, data, epochs=epoch + 1))) == 100
        for _ in loaded(one, data, epochs=epoch + 1):
            steps += 1
            one.stepped(steps)
    assert one.position.samples == 3600


def test_two_loaders_at_a_time_are_refused() -> None:
    one, data = feed(), torch.arange(6 * 500)

    def train() -> None:
        for step, _ in enumerate(zip(loaded(one, data), loaded(one, data), strict=True), 1):
            one.stepped(step)

    with pytest.raises(InvalidInput, match="Use one loader at a time"):
        train()


def test_a_batch_that_is_left_out_now_and_then_ends_nothing() -> None:
    """Nor does a look at the data, before."""
    one = feed()
    for _ in range(2):
        assert len(list(loaded(one, torch.arange(6 * 500)))) == 500
    for number, _ in enumerate(loaded(one, torch.arange(6 * 1000)), 1):
        if number % 10:
            one.stepped(number)


def test_pieces_that_are_handed_out_as_ranks_come() -> None:
    one = feed()
    batches = loaded(one, torch.arange(15), micro_batch=4, dynamic=True)
    seen: list[list[int]] = []
    due: list[bool] = []
    for batch in batches:
        assert (one.may_go_on, one.step_due) == (True, False)
        due.append(one.finish_piece())
        seen.append(batch.tolist())
        if one.step_due:
            one.stepped(len(seen))
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]
    assert due == [False, True, False, True, True]
    assert one.position.offset == 15


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (torch.arange(15), {}),
        (torch.arange(15), {"micro_batch": 4, "options": {"num_workers": 1}}),
        (stream_of([3], 1), {"micro_batch": 4}),
    ],
    ids=["no pieces", "workers", "stream"],
)
def test_what_cannot_be_handed_out_as_ranks_come_is_refused(data: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="needs data with an index, micro_batch, and num_workers=0"):
        loaded(feed(), data, dynamic=True, **changes)


def test_a_piece_that_nobody_said_to_be_done_is_not_followed_by_another() -> None:
    batches = loaded(feed(), torch.arange(15), micro_batch=4, dynamic=True)
    next(batches)
    with pytest.raises(InvalidInput, match=r"run\.accumulate"):
        next(batches)
